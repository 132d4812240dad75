/* Identifiers in every state, wrong calls, and absent peers. Argument: an address of this host. */
#include "rdmacm.h"

static struct rdma_event_channel *channel;
static const char *host;

static struct rdma_cm_id *fresh(enum rdma_port_space ps)
{
	struct rdma_cm_id *id;

	if (rdma_create_id(channel, &id, NULL, ps))
		die("rdma_create_id");
	return id;
}

static struct rdma_cm_id *listening(void)
{
	struct sockaddr_in any = address("0.0.0.0", 0);
	struct rdma_cm_id *id = fresh(RDMA_PS_TCP);

	answers("bind to the wildcard", rdma_bind_addr(id, sa(&any)), 0);
	answers("a wildcard has no device", id->verbs != NULL, 0);
	answers("listen", rdma_listen(id, 4), 0);
	if (!rdma_get_src_port(id))
		answers("a port of one's own", 0, 1);
	return id;
}

static struct sockaddr_in of(struct rdma_cm_id *listener)
{
	return address(host, ntohs(rdma_get_src_port(listener)));
}

static void wrong_calls(void)
{
	struct sockaddr_in any = address("0.0.0.0", 0), own = address(host, 0);
	struct sockaddr_in foreign = address("192.0.2.1", 0), local;
	struct { sa_family_t family; char rest[46]; } ib = { .family = 27 };
	struct rdma_conn_param param = { .responder_resources = 1 };
	struct rdma_cm_id *id = fresh(RDMA_PS_TCP), *other;
	struct ibv_qp_init_attr attr = { .qp_type = IBV_QPT_RC };
	struct ibv_qp_attr qp_attr = { .qp_state = IBV_QPS_INIT };
	struct rdma_cm_event *event;
	uint8_t byte = 3;
	int value = 1, mask;

	answers("O_NONBLOCK", fcntl(channel->fd, F_SETFL, O_NONBLOCK), 0);
	fails("an event that is not there", rdma_get_cm_event(channel, &event), EAGAIN);
	answers("blocking again", fcntl(channel->fd, F_SETFL, 0), 0);
	fails("no room for an event", rdma_get_cm_event(channel, NULL), EINVAL);
	fails("no event to acknowledge", rdma_ack_cm_event(NULL), EINVAL);

	fails("resolve a route without an address", rdma_resolve_route(id, 100), EINVAL);
	fails("connect before anything", rdma_connect(id, &param), EINVAL);
	fails("disconnect before anything", rdma_disconnect(id), EINVAL);
	fails("reject before anything", rdma_reject(id, NULL, 0), EINVAL);
	fails("accept before anything", rdma_accept(id, &param), EINVAL);
	fails("establish before anything", rdma_establish(id), EINVAL);
	fails("notify before anything", rdma_notify(id, IBV_EVENT_COMM_EST), EINVAL);
	fails("QP without a device", rdma_create_qp(id, NULL, &attr), EINVAL);
	fails("QP attributes without a device", rdma_init_qp_attr(id, &qp_attr, &mask), EINVAL);
	fails("request of a channel", rdma_get_request(id, &other), EINVAL);
	fails("join with a connection", rdma_join_multicast(id, sa(&own), NULL), EINVAL);
	fails("leave what was not joined", rdma_leave_multicast(id, sa(&own)), EADDRNOTAVAIL);

	fails("AF_IB", rdma_bind_addr(id, (struct sockaddr *) &ib), EINVAL);
	fails("no address", rdma_bind_addr(id, NULL), EINVAL);
	fails("an address of nobody here", rdma_bind_addr(id, sa(&foreign)), EADDRNOTAVAIL);
	fails("an option that does not exist", rdma_set_option(id, RDMA_OPTION_ID, 99, &value, sizeof value), ENOSYS);
	fails("a level that does not exist", rdma_set_option(id, 7, 0, &value, sizeof value), ENOSYS);
	fails("a type of service of 4 bytes", rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &value, 4), EINVAL);
	answers("a type of service", rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &byte, 1), 0);
	answers("an ACK timeout", rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &byte, 1), 0);

	answers("bind", rdma_bind_addr(id, sa(&own)), 0);
	answers("a device", id->verbs != NULL && id->pd != NULL && id->port_num == 1, 1);
	fails("bind again", rdma_bind_addr(id, sa(&any)), EINVAL);
	answers("listen", rdma_listen(id, 1), 0);
	fails("listen again", rdma_listen(id, 1), EINVAL);
	fails("reuse of what listens", rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &value, 4), EINVAL);

	local = *(struct sockaddr_in *) rdma_get_local_addr(id);
	other = fresh(RDMA_PS_TCP);
	fails("a port in use", rdma_bind_addr(other, sa(&local)), EADDRINUSE);
	any.sin_port = local.sin_port;
	fails("the same on the wildcard", rdma_bind_addr(other, sa(&any)), EADDRNOTAVAIL);
	answers("destroy", rdma_destroy_id(other), 0);
	other = fresh(RDMA_PS_UDP);
	answers("another port space", rdma_bind_addr(other, sa(&local)), 0);
	fails("an ACK timeout of datagrams",
	      rdma_set_option(other, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &byte, 1), EINVAL);
	answers("destroy", rdma_destroy_id(other), 0);
	answers("destroy a listener", rdma_destroy_id(id), 0);
	id = fresh(RDMA_PS_TCP);
	answers("the port is free again", rdma_bind_addr(id, sa(&local)), 0);
	answers("destroy", rdma_destroy_id(id), 0);
}

static void nobody_listens(void)
{
	struct sockaddr_in to = address(host, 1);
	struct rdma_conn_param param = { .retry_count = 7 };
	struct rdma_cm_id *id = resolved(channel, &to);

	make_qp(id);
	answers("connect", rdma_connect(id, &param), 0);
	answers("reason: no such service", expect_event(channel, RDMA_CM_EVENT_REJECTED), 8);
	rdma_destroy_qp(id);
	answers("destroy", rdma_destroy_id(id), 0);

	/* The same for a synchronous identifier. */
	if (rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP))
		die("rdma_create_id");
	answers("resolve", rdma_resolve_addr(id, NULL, sa(&to), 2000), 0);
	answers("the event stays with it", id->event && id->event->event == RDMA_CM_EVENT_ADDR_RESOLVED, 1);
	answers("route", rdma_resolve_route(id, 2000), 0);
	make_qp(id);
	fails("connect to nobody", rdma_connect(id, &param), ECONNREFUSED);
	answers("status", id->event->status, 8);
	rdma_destroy_qp(id);
	answers("destroy", rdma_destroy_id(id), 0);
}

static void nobody_serves(void)
{
	struct sockaddr_in to = address(host, 1);
	struct rdma_conn_param param = { 0 };
	struct rdma_cm_id *id = fresh(RDMA_PS_UDP);

	answers("resolve", rdma_resolve_addr(id, NULL, sa(&to), 2000), 0);
	answers("status", expect_event(channel, RDMA_CM_EVENT_ADDR_RESOLVED), 0);
	answers("route", rdma_resolve_route(id, 2000), 0);
	answers("status", expect_event(channel, RDMA_CM_EVENT_ROUTE_RESOLVED), 0);
	answers("connect", rdma_connect(id, &param), 0);
	/* IB_SIDR_UNSUPPORTED */
	answers("no such service", expect_event(channel, RDMA_CM_EVENT_UNREACHABLE), 1);
	answers("destroy", rdma_destroy_id(id), 0);
}

static void refused(void)
{
	static const char why[] = "not today";
	struct rdma_cm_id *listener = listening(), *id, *asked;
	struct sockaddr_in to = of(listener);
	struct rdma_conn_param param = { .private_data = "please", .private_data_len = 7, .retry_count = 3,
					 .responder_resources = 2, .initiator_depth = 5 };
	struct rdma_cm_event *event;

	id = resolved(channel, &to);
	answers("a path", id->route.num_paths == 1 && id->route.path_rec != NULL, 1);
	make_qp(id);
	param.initiator_depth = 200;
	fails("more READs than there can be", rdma_connect(id, &param), EINVAL);
	param.initiator_depth = 5;
	answers("connect", rdma_connect(id, &param), 0);
	fails("connect again", rdma_connect(id, &param), EINVAL);

	event = next_event(channel, RDMA_CM_EVENT_CONNECT_REQUEST);
	asked = event->id;
	answers("of the listener", event->listen_id == listener && asked != id, 1);
	answers("private data", event->param.conn.private_data_len >= 7 &&
		!strcmp(event->param.conn.private_data, "please"), 1);
	answers("READs we answer", event->param.conn.responder_resources, 5);
	answers("READs we may send", event->param.conn.initiator_depth, 2);
	answers("the peer's port", rdma_get_dst_port(asked) == rdma_get_src_port(id), 1);
	answers("a device", asked->verbs == id->verbs && asked->pd == id->pd, 1);
	rdma_ack_cm_event(event);
	answers("reject", rdma_reject(asked, why, sizeof why), 0);
	answers("destroy the request", rdma_destroy_id(asked), 0);

	event = next_event(channel, RDMA_CM_EVENT_REJECTED);
	answers("reason: the consumer", event->status, 28);
	answers("why", event->param.conn.private_data_len >= sizeof why &&
		!strcmp(event->param.conn.private_data, why), 1);
	rdma_ack_cm_event(event);
	rdma_destroy_qp(id);
	answers("destroy", rdma_destroy_id(id), 0);
	answers("destroy", rdma_destroy_id(listener), 0);
}

/* Destroys the listener while a request waits, before or after it was taken. */
static void listener_goes(int taken)
{
	struct rdma_cm_id *listener = listening(), *id;
	struct sockaddr_in to = of(listener);
	struct rdma_conn_param param = { .retry_count = 3 };
	struct rdma_cm_event *event = NULL;
	struct pollfd fd = { channel->fd, POLLIN, 0 };

	id = resolved(channel, &to);
	make_qp(id);
	answers("connect", rdma_connect(id, &param), 0);
	answers("a request", poll(&fd, 1, 20000), 1);
	if (taken) {
		event = next_event(channel, RDMA_CM_EVENT_CONNECT_REQUEST);
		struct rdma_cm_id *asked = event->id;

		rdma_ack_cm_event(event);
		answers("destroy the request", rdma_destroy_id(asked), 0);
	}
	answers("destroy the listener", rdma_destroy_id(listener), 0);
	answers("reason: the consumer", expect_event(channel, RDMA_CM_EVENT_REJECTED), 28);
	rdma_destroy_qp(id);
	answers("destroy", rdma_destroy_id(id), 0);
}

/* Destroys an identifier at each step of its life; the other side is told. */
static void destroyed_midway(void)
{
	struct rdma_cm_id *listener = listening(), *id, *asked;
	struct sockaddr_in to = of(listener);
	struct rdma_conn_param param = { .retry_count = 3 };
	struct rdma_cm_event *event;
	struct pollfd fd = { channel->fd, POLLIN, 0 };

	answers("idle", rdma_destroy_id(fresh(RDMA_PS_TCP)), 0);
	id = fresh(RDMA_PS_TCP);
	answers("resolve", rdma_resolve_addr(id, NULL, sa(&to), 2000), 0);
	answers("with an event that waits", rdma_destroy_id(id), 0);
	answers("its event is gone", poll(&fd, 1, 0), 0);
	id = resolved(channel, &to);
	answers("resolved", rdma_destroy_id(id), 0);

	/* Connecting: the passive side finds out when it accepts, or gets a REJ without an event. */
	id = resolved(channel, &to);
	make_qp(id);
	answers("connect", rdma_connect(id, &param), 0);
	event = next_event(channel, RDMA_CM_EVENT_CONNECT_REQUEST);
	asked = event->id;
	rdma_ack_cm_event(event);
	rdma_destroy_qp(id);
	answers("connecting", rdma_destroy_id(id), 0);
	answers("the request", rdma_destroy_id(asked), 0);

	/* Connected. */
	id = resolved(channel, &to);
	make_qp(id);
	answers("connect", rdma_connect(id, &param), 0);
	event = next_event(channel, RDMA_CM_EVENT_CONNECT_REQUEST);
	asked = event->id;
	rdma_ack_cm_event(event);
	make_qp(asked);
	answers("accept", rdma_accept(asked, &param), 0);
	answers("active", expect_event(channel, RDMA_CM_EVENT_ESTABLISHED), 0);
	answers("passive", expect_event(channel, RDMA_CM_EVENT_ESTABLISHED), 0);
	answers("accept again", rdma_accept(asked, &param) == -1, 1);
	rdma_destroy_qp(id);
	answers("connected", rdma_destroy_id(id), 0);
	event = next_event(channel, RDMA_CM_EVENT_DISCONNECTED);
	answers("of the other", event->id == asked && !event->status, 1);
	rdma_ack_cm_event(event);
	answers("disconnect", rdma_disconnect(asked), 0);
	rdma_destroy_qp(asked);
	answers("disconnected", rdma_destroy_id(asked), 0);
	answers("listening", rdma_destroy_id(listener), 0);
}

/* Destroying waits for an acknowledgement by another thread. */
#include <pthread.h>

static void *acknowledge(void *event)
{
	usleep(50000);
	rdma_ack_cm_event(event);
	return NULL;
}

static void unacknowledged(void)
{
	struct sockaddr_in to = address(host, 1);
	struct rdma_cm_id *id = fresh(RDMA_PS_TCP);
	struct rdma_cm_event *event;
	pthread_t thread;

	answers("resolve", rdma_resolve_addr(id, NULL, sa(&to), 2000), 0);
	event = next_event(channel, RDMA_CM_EVENT_ADDR_RESOLVED);
	if (pthread_create(&thread, NULL, acknowledge, event))
		die("pthread_create");
	answers("destroy", rdma_destroy_id(id), 0);
	answers("join", pthread_join(thread, NULL), 0);
}

static void moved(void)
{
	struct rdma_event_channel *other = rdma_create_event_channel();
	struct sockaddr_in to = address(host, 1);
	struct rdma_cm_id *id = fresh(RDMA_PS_TCP);
	struct pollfd fd = { channel->fd, POLLIN, 0 };

	answers("resolve", rdma_resolve_addr(id, NULL, sa(&to), 2000), 0);
	answers("an event", poll(&fd, 1, 20000), 1);
	answers("migrate", rdma_migrate_id(id, other), 0);
	answers("the event went along", poll(&fd, 1, 0), 0);
	answers("status", expect_event(other, RDMA_CM_EVENT_ADDR_RESOLVED), 0);
	answers("to a channel of its own", rdma_migrate_id(id, NULL), 0);
	fails("twice", rdma_migrate_id(id, NULL), EINVAL);
	answers("route, waiting", rdma_resolve_route(id, 2000), 0);
	answers("back", rdma_migrate_id(id, channel), 0);
	answers("destroy", rdma_destroy_id(id), 0);
	rdma_destroy_event_channel(other);
}

int main(int argc, char **argv)
{
	if (argc < 2)
		return 2;
	host = argv[1];
	channel = rdma_create_event_channel();
	if (!channel)
		die("rdma_create_event_channel");
	wrong_calls();
	unacknowledged();
	moved();
	nobody_listens();
	nobody_serves();
	refused();
	listener_goes(0);
	listener_goes(1);
	destroyed_midway();
	rdma_destroy_event_channel(channel);
	if (!bad)
		puts("ok");
	return bad != 0;
}
