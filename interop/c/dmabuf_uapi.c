/* Everything that a program may do with the descriptor of a dma-buf, right and wrong, and the
 * results, one per line. The lines are the same for every exporter: udmabuf, a DRM driver (its dumb
 * buffer), or "dm", device memory of a NIC, like the kernel's exporter without mmap.
 *
 *     dmabuf_uapi EXPORTER           makes a buffer, and sends it to another process
 *     dmabuf_uapi receive SOCKET MAP  is that other process */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <linux/dma-buf.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>

/* Device memory is scarce. */
#define SIZE (1u << 16)
#define PAGE 4096u

#include "exporters.h"

/* Newer than some headers. */
struct sync_fd {
	uint32_t flags;
	int32_t fd;
};
#define EXPORT_SYNC _IOWR('b', 2, struct sync_fd)
#define IMPORT_SYNC _IOW('b', 3, struct sync_fd)
#define NAME_A _IOW('b', 1, uint32_t)
#define NAME_B _IOW('b', 1, uint64_t)

static const char *who = "";

static void say(const char *what, long answer)
{
	if (answer == -1)
		printf("%s%s: %s\n", who, what, strerrorname_np(errno) ? strerrorname_np(errno) : "?");
	else
		printf("%s%s: %ld\n", who, what, answer);
	fflush(stdout);
}

static int of_dm(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *context = list && list[0] ? ibv_open_device(list[0]) : NULL;
	struct ibv_alloc_dm_attr attr = { .length = SIZE };
	int (*export)(struct ibv_dm *) = (int (*)(struct ibv_dm *))dlsym(RTLD_DEFAULT, "ibv_dm_export_dmabuf_fd");
	struct ibv_dm *dm = context ? ibv_alloc_dm(context, &attr) : NULL;
	int fd = dm && export ? export(dm) : -1;

	if (fd < 0)
		err(1, "device memory");
	return fd;
}

static void seeks(int fd)
{
	say("seek to the end", lseek(fd, 0, SEEK_END) == SIZE ? 0 : -1);
	say("seek to the start", lseek(fd, 0, SEEK_SET));
	say("seek beyond the end", lseek(fd, 1, SEEK_END));
	say("seek before the end", lseek(fd, -1, SEEK_END));
	say("seek into it", lseek(fd, PAGE, SEEK_SET));
	say("seek from here", lseek(fd, 0, SEEK_CUR));
}

static long map(int fd, size_t len, int prot, int flags, off_t offset)
{
	char *at = mmap(NULL, len, prot, flags, fd, offset);

	if (at == MAP_FAILED)
		return -1;
	return munmap(at, len);
}

static void maps(int fd)
{
	const int rw = PROT_READ | PROT_WRITE;

	say("map all", map(fd, SIZE, rw, MAP_SHARED, 0));
	say("map to read", map(fd, SIZE, PROT_READ, MAP_SHARED, 0));
	say("map a page in the middle", map(fd, PAGE, rw, MAP_SHARED, 8 * PAGE));
	say("map the last page", map(fd, PAGE, rw, MAP_SHARED, SIZE - PAGE));
	say("map a byte", map(fd, 1, rw, MAP_SHARED, 0));
	say("map a copy", map(fd, SIZE, rw, MAP_PRIVATE, 0));
	say("map a copy to read", map(fd, SIZE, PROT_READ, MAP_PRIVATE, 0));
	say("map nothing", map(fd, 0, rw, MAP_SHARED, 0));
	say("map too much", map(fd, SIZE + PAGE, rw, MAP_SHARED, 0));
	say("map beyond the end", map(fd, PAGE, rw, MAP_SHARED, SIZE));
	say("map over the end", map(fd, 2 * PAGE, rw, MAP_SHARED, SIZE - PAGE));
	say("map from within a page", map(fd, PAGE, rw, MAP_SHARED, 100));
	say("map far beyond the end", map(fd, PAGE, rw, MAP_SHARED, (off_t)1 << 60));
}

static long sync_cpu(int fd, uint64_t flags)
{
	struct dma_buf_sync sync = { .flags = flags };

	return ioctl(fd, DMA_BUF_IOCTL_SYNC, &sync);
}

static void syncs(int fd)
{
	say("begin to read", sync_cpu(fd, DMA_BUF_SYNC_START | DMA_BUF_SYNC_READ));
	say("end to read", sync_cpu(fd, DMA_BUF_SYNC_END | DMA_BUF_SYNC_READ));
	say("begin to write", sync_cpu(fd, DMA_BUF_SYNC_START | DMA_BUF_SYNC_WRITE));
	say("end to write", sync_cpu(fd, DMA_BUF_SYNC_END | DMA_BUF_SYNC_WRITE));
	say("begin both", sync_cpu(fd, DMA_BUF_SYNC_START | DMA_BUF_SYNC_RW));
	say("end both", sync_cpu(fd, DMA_BUF_SYNC_END | DMA_BUF_SYNC_RW));
	say("begin neither", sync_cpu(fd, DMA_BUF_SYNC_START));
	say("end neither", sync_cpu(fd, DMA_BUF_SYNC_END));
	say("a flag that does not exist", sync_cpu(fd, 8 | DMA_BUF_SYNC_RW));
	say("a high flag that does not exist", sync_cpu(fd, (uint64_t)1 << 40 | DMA_BUF_SYNC_RW));
	say("begin without flags to read", ioctl(fd, DMA_BUF_IOCTL_SYNC, NULL));
	say("a request that does not exist", ioctl(fd, _IOW('b', 9, uint64_t), &(uint64_t){ 0 }));
	say("a request of another kind", ioctl(fd, _IOW('z', 0, uint64_t), &(uint64_t){ 0 }));
}

static void names(int fd)
{
	say("a name", ioctl(fd, NAME_B, "frame"));
	say("a name by the old number", ioctl(fd, NAME_A, "frame"));
	say("no letter", ioctl(fd, NAME_B, ""));
	say("31 letters", ioctl(fd, NAME_B, "1234567890123456789012345678901"));
	say("32 letters", ioctl(fd, NAME_B, "12345678901234567890123456789012"));
	say("a name from nowhere", ioctl(fd, NAME_B, NULL));
}

static long ready(int fd, short events)
{
	struct pollfd poll_fd = { .fd = fd, .events = events, .revents = -1 };
	int count = poll(&poll_fd, 1, 0);

	return count < 0 ? count : count * 100 + poll_fd.revents;
}

static void fences(int fd)
{
	struct sync_fd sync = { .flags = DMA_BUF_SYNC_RW };
	struct sync_fd none = { .flags = 0 }, odd = { .flags = 8 }, read = { .flags = DMA_BUF_SYNC_READ };
	int pipes[2];

	say("its fences as a file", ioctl(fd, EXPORT_SYNC, &sync));
	say("which is ready", ready(sync.fd, POLLIN));
	say("those of readers", ioctl(fd, EXPORT_SYNC, &read));
	close(read.fd);
	say("those of nobody", ioctl(fd, EXPORT_SYNC, &none));
	say("those of others", ioctl(fd, EXPORT_SYNC, &odd));
	say("take a fence", ioctl(fd, IMPORT_SYNC, &sync));
	sync.flags = DMA_BUF_SYNC_READ;
	say("take one to read", ioctl(fd, IMPORT_SYNC, &sync));
	sync.flags = 0;
	say("take one for nothing", ioctl(fd, IMPORT_SYNC, &sync));
	close(sync.fd);
	sync.flags = DMA_BUF_SYNC_RW;
	say("take one that is closed", ioctl(fd, IMPORT_SYNC, &sync));
	sync.fd = -1;
	say("take none", ioctl(fd, IMPORT_SYNC, &sync));
	if (pipe(pipes))
		err(1, "pipe");
	sync.fd = pipes[0];
	say("take a pipe", ioctl(fd, IMPORT_SYNC, &sync));
	close(pipes[0]);
	close(pipes[1]);
}

static void polls(int fd)
{
	struct pollfd both[2] = { { .fd = fd, .events = POLLIN }, { .fd = -1, .events = POLLIN } };

	say("poll to read", ready(fd, POLLIN));
	say("poll to write", ready(fd, POLLOUT));
	say("poll for both", ready(fd, POLLIN | POLLOUT));
	say("poll for nothing", ready(fd, 0));
	say("poll with another", poll(both, 2, 1000));
}

/* Fills a page with bytes that depend on their place. */
static void fill(unsigned char *at, unsigned seed)
{
	for (unsigned i = 0; i < PAGE; i++)
		at[i] = (unsigned char)(i * 7 + seed);
}

static long is_filled(const unsigned char *at, unsigned seed)
{
	for (unsigned i = 0; i < PAGE; i++)
		if (at[i] != (unsigned char)(i * 7 + seed))
			return 0;
	return 1;
}

static int receive_fd(int socket)
{
	char byte;
	union {
		char bytes[CMSG_SPACE(sizeof(int))];
		struct cmsghdr align;
	} control = { 0 };
	struct iovec data = { .iov_base = &byte, .iov_len = 1 };
	struct msghdr message = {
		.msg_iov = &data, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control),
	};
	int fd;

	if (recvmsg(socket, &message, 0) != 1 || !CMSG_FIRSTHDR(&message))
		err(1, "recvmsg");
	memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(fd));
	return fd;
}

static void send_to(int socket, int fd)
{
	char byte = 'b';
	union {
		char bytes[CMSG_SPACE(sizeof(int))];
		struct cmsghdr align;
	} control = { 0 };
	struct iovec data = { .iov_base = &byte, .iov_len = 1 };
	struct msghdr message = {
		.msg_iov = &data, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control),
	};
	struct cmsghdr *header = CMSG_FIRSTHDR(&message);

	header->cmsg_level = SOL_SOCKET;
	header->cmsg_type = SCM_RIGHTS;
	header->cmsg_len = CMSG_LEN(sizeof(fd));
	memcpy(CMSG_DATA(header), &fd, sizeof(fd));
	if (sendmsg(socket, &message, 0) != 1)
		err(1, "sendmsg");
}

/* The other process polls first. */
static int receive(int socket, int can_map)
{
	int fd = receive_fd(socket);
	unsigned char *at;

	who = "another process: ";
	polls(fd);
	seeks(fd);
	maps(fd);
	syncs(fd);
	names(fd);
	fences(fd);
	if (!can_map)
		return 0;
	at = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (at == MAP_FAILED)
		err(1, "mapped");
	close(fd);
	say("sees what was written", is_filled(at, 3) && is_filled(at + SIZE - PAGE, 4));
	fill(at + PAGE, 5);
	say("lets go", munmap(at, SIZE));
	return 0;
}

static void share(int fd, int can_map)
{
	unsigned char *at = can_map ? mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) : NULL;
	int sockets[2], status;
	char number[16];
	pid_t child;

	if (at == MAP_FAILED || socketpair(AF_UNIX, SOCK_SEQPACKET, 0, sockets))
		err(1, "share");
	if (can_map) {
		fill(at, 3);
		fill(at + SIZE - PAGE, 4);
	}
	fflush(stdout);
	child = fork();
	if (child == 0) {
		snprintf(number, sizeof(number), "%d", sockets[1]);
		execl("/proc/self/exe", "dmabuf_uapi", "receive", number, can_map ? "1" : "0", (char *)NULL);
		err(1, "exec");
	}
	close(sockets[1]);
	send_to(sockets[0], fd);
	if (waitpid(child, &status, 0) != child || status)
		errx(1, "the other process ended with %#x", status);
	if (can_map) {
		say("sees what the other wrote", is_filled(at + PAGE, 5) && is_filled(at, 3));
		say("lets go", munmap(at, SIZE));
	}
}

int main(int argc, char **argv)
{
	int fd, copy, can_map;

	if (argc == 4 && !strcmp(argv[1], "receive"))
		return receive(atoi(argv[2]), atoi(argv[3]));
	if (argc != 2)
		errx(1, "which exporter?");
	can_map = strcmp(argv[1], "dm");
	fd = can_map ? of_exporter(argv[1]) : of_dm();
	seeks(fd);
	maps(fd);
	syncs(fd);
	names(fd);
	polls(fd);
	fences(fd);
	copy = dup(fd);
	close(fd);
	who = "a copy: ";
	syncs(copy);
	maps(copy);
	share(copy, can_map);
	close(copy);
	return 0;
}
