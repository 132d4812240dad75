// Lists RDMA devices and counts queue pairs by a socket of NETLINK_RDMA, with system calls alone.
// Prints "DEVICE INDEX NAME" for each device, "QPS N" for the first one, and "PORT N" for the port
// of its own that the kernel gave it.
#include <linux/netlink.h>
#include <rdma/rdma_netlink.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static int fd;
static uint32_t sequence, port;

static void must(int good, const char *what)
{
	if (!good) {
		perror(what);
		exit(1);
	}
}

// Sends a request for a list, with a device index if it is not negative.
static void ask(int op, int64_t index)
{
	struct {
		struct nlmsghdr header;
		struct nlattr attribute;
		uint32_t index;
	} request = { .header = {
		.nlmsg_type = RDMA_NL_GET_TYPE(RDMA_NL_NLDEV, op),
		.nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP,
		.nlmsg_seq = ++sequence,
		.nlmsg_len = sizeof(struct nlmsghdr),
	} };
	if (index >= 0) {
		request.attribute.nla_len = NLA_HDRLEN + 4;
		request.attribute.nla_type = RDMA_NLDEV_ATTR_DEV_INDEX;
		request.index = index;
		request.header.nlmsg_len = sizeof request;
	}
	struct sockaddr_nl kernel = { .nl_family = AF_NETLINK };
	struct iovec iov = { &request, request.header.nlmsg_len };
	struct msghdr message = { .msg_name = &kernel, .msg_namelen = sizeof kernel, .msg_iov = &iov, .msg_iovlen = 1 };
	must(sendmsg(fd, &message, 0) == request.header.nlmsg_len, "sendmsg");
}

// Calls `each` with the type and the value of every attribute of every answer.
static void answers(void (*each)(int, const void *, int))
{
	static char buffer[16384];
	for (;;) {
		struct sockaddr_nl from;
		struct iovec iov = { buffer, sizeof buffer };
		struct msghdr message = { .msg_name = &from, .msg_namelen = sizeof from, .msg_iov = &iov, .msg_iovlen = 1 };
		int left = recvmsg(fd, &message, 0);
		must(left > 0, "recvmsg");
		must(message.msg_namelen == sizeof from && from.nl_pid == 0, "not from the kernel");
		for (struct nlmsghdr *header = (void *)buffer; NLMSG_OK(header, left); header = NLMSG_NEXT(header, left)) {
			must(header->nlmsg_seq == sequence && header->nlmsg_pid == port, "not an answer to us");
			must(header->nlmsg_type != NLMSG_ERROR, "an error");
			if (header->nlmsg_type == NLMSG_DONE)
				return;
			char *at = NLMSG_DATA(header), *end = (char *)header + header->nlmsg_len;
			while (at < end) {
				struct nlattr *attribute = (void *)at;
				each(attribute->nla_type & NLA_TYPE_MASK, at + NLA_HDRLEN, attribute->nla_len - NLA_HDRLEN);
				at += NLA_ALIGN(attribute->nla_len);
			}
		}
	}
}

static uint32_t device;
static int queue_pairs;

static void print(int type, const void *value, int length)
{
	(void)length;
	if (type == RDMA_NLDEV_ATTR_DEV_INDEX)
		memcpy(&device, value, 4);
	if (type == RDMA_NLDEV_ATTR_DEV_NAME)
		printf("DEVICE %u %s\n", device, (const char *)value);
}

static void count(int type, const void *value, int length)
{
	if (type != RDMA_NLDEV_ATTR_RES_QP)
		return;
	for (const char *at = value; at < (const char *)value + length;) {
		const struct nlattr *entry = (const void *)at;
		queue_pairs++;
		at += NLA_ALIGN(entry->nla_len);
	}
}

int main(void)
{
	fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_RDMA);
	must(fd >= 0, "socket");
	int one = 1;
	must(setsockopt(fd, SOL_NETLINK, NETLINK_EXT_ACK, &one, sizeof one) == 0, "setsockopt");
	struct sockaddr_nl own = { .nl_family = AF_NETLINK };
	must(bind(fd, (void *)&own, sizeof own) == 0, "bind");
	socklen_t length = sizeof own;
	must(getsockname(fd, (void *)&own, &length) == 0, "getsockname");
	must(length == sizeof own && own.nl_family == AF_NETLINK && own.nl_pid != 0, "no address");
	port = own.nl_pid;
	printf("PORT %u\n", port);
	ask(RDMA_NLDEV_CMD_GET, -1);
	answers(print);
	ask(RDMA_NLDEV_CMD_RES_QP_GET, 0);
	answers(count);
	printf("QPS %d\n", queue_pairs);
	return 0;
}
