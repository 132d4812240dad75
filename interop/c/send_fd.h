/* Sends a buffer on standard input, which is a socket: SCM_RIGHTS, with one byte. */
#include <err.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

static inline void send_fd(int fd)
{
	char byte = 'b';
	union {
		char bytes[CMSG_SPACE(sizeof fd)];
		struct cmsghdr align;
	} control = { 0 };
	struct iovec data = { .iov_base = &byte, .iov_len = 1 };
	struct msghdr message = {
		.msg_iov = &data, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control,
	};
	struct cmsghdr *header = CMSG_FIRSTHDR(&message);

	header->cmsg_level = SOL_SOCKET;
	header->cmsg_type = SCM_RIGHTS;
	header->cmsg_len = CMSG_LEN(sizeof fd);
	memcpy(CMSG_DATA(header), &fd, sizeof fd);
	if (sendmsg(0, &message, 0) != 1)
		err(1, "sendmsg");
}
