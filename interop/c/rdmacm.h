/* Helpers for the programs about the connection manager. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>

static int bad;

static void answers(const char *what, int got, int want)
{
	if (got == want)
		return;
	fprintf(stderr, "%s: %d, wanted %d\n", what, got, want);
	bad++;
}

/* A call that fails with -1 and this errno. */
static inline void fails(const char *what, int got, int want)
{
	int why = errno;

	if (got == -1 && why == want)
		return;
	fprintf(stderr, "%s: %d with errno %d (%s), wanted -1 with %d\n", what, got, why, strerror(why), want);
	bad++;
}

static void die(const char *what)
{
	perror(what);
	exit(1);
}

static struct sockaddr_in address(const char *ip, int port)
{
	struct sockaddr_in sin = { .sin_family = AF_INET, .sin_port = htons(port) };

	if (inet_pton(AF_INET, ip, &sin.sin_addr) != 1)
		die(ip);
	return sin;
}

static struct sockaddr *sa(struct sockaddr_in *sin)
{
	return (struct sockaddr *) sin;
}

/* Checks that the next event is this one. The caller acknowledges it. */
static inline struct rdma_cm_event *next_event(struct rdma_event_channel *channel, enum rdma_cm_event_type want)
{
	struct rdma_cm_event *event;

	if (rdma_get_cm_event(channel, &event))
		die("rdma_get_cm_event");
	if (event->event != want) {
		fprintf(stderr, "%s with status %d, wanted %s\n", rdma_event_str(event->event), event->status,
			rdma_event_str(want));
		exit(1);
	}
	return event;
}

static inline int expect_event(struct rdma_event_channel *channel, enum rdma_cm_event_type want)
{
	struct rdma_cm_event *event = next_event(channel, want);
	int status = event->status;

	rdma_ack_cm_event(event);
	return status;
}

/* An identifier whose address and route are resolved. */
static inline struct rdma_cm_id *resolved(struct rdma_event_channel *channel, struct sockaddr_in *to)
{
	struct rdma_cm_id *id;

	if (rdma_create_id(channel, &id, NULL, RDMA_PS_TCP))
		die("rdma_create_id");
	if (rdma_resolve_addr(id, NULL, sa(to), 2000))
		die("rdma_resolve_addr");
	answers("status of ADDR_RESOLVED", expect_event(channel, RDMA_CM_EVENT_ADDR_RESOLVED), 0);
	if (rdma_resolve_route(id, 2000))
		die("rdma_resolve_route");
	answers("status of ROUTE_RESOLVED", expect_event(channel, RDMA_CM_EVENT_ROUTE_RESOLVED), 0);
	return id;
}

static inline void make_qp(struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr attr = {
		.cap = { .max_send_wr = 2, .max_recv_wr = 2, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = IBV_QPT_RC,
	};

	if (rdma_create_qp(id, NULL, &attr))
		die("rdma_create_qp");
}
