/* A listener of the connection manager that has no descriptors left. argv[1] is how many more files
 * it may open; -1 is a limit below what it has open already. It prints "ready" and then does
 * nothing until it is killed. */
#include "rdmacm.h"

#include <sys/resource.h>

int main(int argc, char **argv)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct sockaddr_in any = address("0.0.0.0", 0);
	struct rdma_cm_id *id;
	struct rlimit files;
	int more = argc == 2 ? atoi(argv[1]) : 0, next;

	if (!channel || rdma_create_id(channel, &id, NULL, RDMA_PS_TCP))
		die("id");
	answers("bind", rdma_bind_addr(id, sa(&any)), 0);
	answers("listen", rdma_listen(id, 1024), 0);
	next = dup(0);
	close(next);
	if (getrlimit(RLIMIT_NOFILE, &files))
		die("getrlimit");
	files.rlim_cur = more < 0 ? 3 : next + more;
	if (setrlimit(RLIMIT_NOFILE, &files))
		die("setrlimit");
	if (bad)
		return 1;
	puts("ready");
	fflush(stdout);
	for (;;)
		pause();
}
