/* What a program sees when its GPU is unplugged: it has CUDA memory mapped by a dma-buf, and so has
 * another process to which it sent the descriptor.
 *
 *     unplugged FILE    prints that it is ready, waits until FILE exists, and checks what is left
 *                       of GPU 0; GPU 1 is unchanged */
#define _GNU_SOURCE
#include "cuda_api.h"

#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE ((size_t)4096)
#define LEN (16 * PAGE)

enum { CU_DEVICE_UNAVAILABLE = 46 };

static sigjmp_buf out;
static volatile uintptr_t fault;

static void on_bus(int signal, siginfo_t *info, void *context)
{
	(void)context;
	CHECK(signal == SIGBUS);
	fault = (uintptr_t)info->si_addr;
	siglongjmp(out, 1);
}

static void send_fd(int socket, int fd)
{
	union {
		char bytes[CMSG_SPACE(sizeof(int))];
		struct cmsghdr align;
	} control = { 0 };
	struct iovec data = { .iov_base = "b", .iov_len = 1 };
	struct msghdr message = { .msg_iov = &data, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control) };
	struct cmsghdr *header = CMSG_FIRSTHDR(&message);

	header->cmsg_level = SOL_SOCKET;
	header->cmsg_type = SCM_RIGHTS;
	header->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(header), &fd, sizeof(fd));
	CHECK(sendmsg(socket, &message, 0) == 1);
}

static int receive_fd(int socket)
{
	union {
		char bytes[CMSG_SPACE(sizeof(int))];
		struct cmsghdr align;
	} control;
	char byte;
	struct iovec data = { .iov_base = &byte, .iov_len = 1 };
	struct msghdr message = { .msg_iov = &data, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control) };
	int fd;

	CHECK(recvmsg(socket, &message, MSG_CMSG_CLOEXEC) == 1 && CMSG_FIRSTHDR(&message));
	memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(fd));
	return fd;
}

/* Whether the byte can be read and written. */
static int is_there(volatile unsigned char *byte, int write)
{
	fault = 0;
	if (sigsetjmp(out, 1))
		return 0;
	if (write)
		*byte = 7;
	else
		(void)*byte;
	return 1;
}

static unsigned char *map(int fd, size_t offset, size_t len)
{
	unsigned char *at = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)offset);

	CHECK(at != MAP_FAILED);
	return at;
}

static void wait_for(const char *file)
{
	while (access(file, F_OK))
		usleep(1000);
}

/* The pages go away soon afterwards: in a process other than the GPU's, a message must arrive
 * first. */
static void look(unsigned char *gone, unsigned char *own, unsigned char *other, const char *who)
{
	for (int tries = 0; is_there(gone, 0); tries++) {
		CHECK(tries < 10000);
		usleep(1000);
	}
	for (size_t at = 0; at < LEN; at += PAGE) {
		/* A hole that was unmapped before stays one. */
		if (at == 4 * PAGE)
			continue;
		CHECK(!is_there(gone + at + 5, at % (2 * PAGE) == 0));
		CHECK(fault == (uintptr_t)gone + at + 5);
	}
	CHECK(is_there(own, 1) && own[1] == 3);
	CHECK(is_there(other, 1) && other[1] == 9);
	/* Nothing new can be mapped, and what is there can be unmapped, in parts. */
	CHECK(munmap(gone, 2 * PAGE) == 0 && munmap(gone + 2 * PAGE, LEN - 2 * PAGE) == 0);
	CHECK(munmap(other, LEN) == 0);
	printf("%s: SIGBUS\n", who);
	fflush(stdout);
}

static void receiver(int socket, const char *file)
{
	int fd = receive_fd(socket), other = receive_fd(socket);
	unsigned char *gone = map(fd, 0, LEN), *kept = map(other, 0, LEN);
	unsigned char *own = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	CHECK(own != MAP_FAILED && gone[LEN - 1] == 1);
	own[1] = 3;
	gone[LEN - 1] = 2;
	CHECK(munmap(gone + 4 * PAGE, PAGE) == 0);
	CHECK(write(socket, "r", 1) == 1);
	wait_for(file);
	look(gone, own, kept, "another process");
	CHECK(mmap(NULL, LEN, PROT_READ, MAP_SHARED, fd, 0) == MAP_FAILED);
	exit(0);
}

static int exported(cu_ptr *a, int device)
{
	cu_context context;
	int fd;

	CU(cuCtxCreate_v2(&context, 0, device));
	CU(cuMemAlloc_v2(a, LEN));
	CU(cuMemGetHandleForAddressRange(&fd, *a, LEN, 1, 0));
	return fd;
}

int main(int argc, char **argv)
{
	struct sigaction action = { .sa_sigaction = on_bus, .sa_flags = SA_SIGINFO };
	unsigned char bytes[8], *gone, *kept, *own;
	int pair[2], fd, other, status;
	cu_ptr a, b;
	pid_t child;

	CHECK(argc > 1 && sigaction(SIGBUS, &action, NULL) == 0);
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
	child = fork();
	if (!child)
		receiver(pair[1], argv[1]);
	close(pair[1]);
	cuda_load();
	CU(cuInit(0));
	other = exported(&b, 1);
	fd = exported(&a, 0);
	CU(cuMemsetD8_v2(a, 1, LEN));
	CU(cuMemsetD8_v2(b, 9, LEN));
	send_fd(pair[0], fd);
	send_fd(pair[0], other);
	gone = map(fd, 0, LEN);
	kept = map(other, 0, LEN);
	own = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(own != MAP_FAILED && read(pair[0], bytes, 1) == 1 && gone[LEN - 1] == 2);
	own[1] = 3;
	CHECK(munmap(gone + 4 * PAGE, PAGE) == 0);
	printf("ready\n");
	fflush(stdout);
	wait_for(argv[1]);
	look(gone, own, kept, "the program");
	CHECK(mmap(NULL, LEN, PROT_READ, MAP_SHARED, fd, 0) == MAP_FAILED);
	/* And by the error codes of CUDA. */
	CU_IS(cuMemcpyDtoH_v2(bytes, a, 8), CU_DEVICE_UNAVAILABLE);
	CU_IS(cuMemcpyHtoD_v2(a, bytes, 8), CU_DEVICE_UNAVAILABLE);
	CU_IS(cuMemsetD8_v2(a, 0, 8), CU_DEVICE_UNAVAILABLE);
	CU_IS(cuMemcpyDtoD_v2(b, a, 8), CU_DEVICE_UNAVAILABLE);
	CU_IS(cuMemGetHandleForAddressRange(&fd, a, LEN, 1, 0), CU_DEVICE_UNAVAILABLE);
	CU_IS(cuMemAlloc_v2(&a, LEN), CU_DEVICE_UNAVAILABLE);
	CU(cuMemcpyDtoH_v2(bytes, b, 8));
	CHECK(bytes[7] == 9);
	CU(cuMemFree_v2(a));
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	printf("ok\n");
	return 0;
}
