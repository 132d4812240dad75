/* Every call of the connection manager, with each of its arguments wrong in turn: null, destroyed,
 * of another kind; with numbers that mean nothing; and in every state of an identifier that the
 * kernel's cma does not allow it in. None may crash, where librdmacm would, since it reads the
 * identifier that it is given. Each fails with -1 and EINVAL, unless a row or a rule says
 * otherwise. On the way to those states two sides also exchange a vendor's options.
 *
 * names.h lists the calls of the library's own table; one without a row here fails the test. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "wrong.h"

/* How a call fails. */
enum fails {
	MINUS, /* returns -1 and sets errno */
	NIL, /* returns NULL and sets errno */
	NEVER, /* cannot fail: must return */
	PURE, /* takes nothing that can be wrong */
};

struct name {
	const char *name;
	const char *node;
};

#define NAME(name, node) { name, node },
static const struct name names[] = {
#include "names.h"
};

/* Arguments: E event channel (e: or none), I identifier, V event, P domain (p: or none); a structure (s) or room for one (w)
 * that must be there, one that need not (.); a number (0 to 9). */
struct row {
	const char *name;
	enum fails fails;
	const char *args;
};

static const struct row rows[] = {
	{ "rdma_accept", MINUS, "I." },
	{ "rdma_ack_cm_event", MINUS, "V" },
	{ "rdma_bind_addr", MINUS, "Is" },
	{ "rdma_connect", MINUS, "I." },
	{ "rdma_create_ep", MINUS, "wsp." },
	{ "rdma_create_event_channel", PURE, "" },
	{ "rdma_create_id", MINUS, "ew.T" },
	{ "rdma_create_qp", MINUS, "Ips" },
	{ "rdma_create_qp_ex", MINUS, "Is" },
	{ "rdma_create_srq", MINUS, "Ips" },
	{ "rdma_create_srq_ex", MINUS, "Is" },
	{ "rdma_destroy_ep", NEVER, "I" },
	{ "rdma_destroy_event_channel", NEVER, "E" },
	{ "rdma_destroy_id", MINUS, "I" },
	{ "rdma_destroy_qp", NEVER, "I" },
	{ "rdma_destroy_srq", NEVER, "I" },
	{ "rdma_disconnect", MINUS, "I" },
	{ "rdma_establish", MINUS, "I" },
	{ "rdma_event_str", PURE, "" },
	{ "rdma_free_devices", NEVER, "s" },
	{ "rdma_freeaddrinfo", NEVER, "s" },
	{ "rdma_get_cm_event", MINUS, "Ew" },
	{ "rdma_get_devices", PURE, "" },
	{ "rdma_get_dst_port", NEVER, "I" },
	{ "rdma_get_remote_ece", MINUS, "Iw" },
	{ "rdma_get_request", MINUS, "Iw" },
	{ "rdma_get_src_port", NEVER, "I" },
	{ "rdma_getaddrinfo", MINUS, "...w" },
	{ "rdma_init_qp_attr", MINUS, "Iww" },
	{ "rdma_join_multicast", MINUS, "Is." },
	{ "rdma_join_multicast_ex", MINUS, "Is." },
	{ "rdma_leave_multicast", MINUS, "Is" },
	{ "rdma_listen", MINUS, "I1" },
	{ "rdma_migrate_id", MINUS, "Ie" },
	{ "rdma_notify", MINUS, "I4" },
	{ "rdma_query_addrinfo", MINUS, "Iw" },
	{ "rdma_reject", MINUS, "I.0" },
	{ "rdma_reject_ece", MINUS, "I.0" },
	{ "rdma_resolve_addr", MINUS, "I.s9" },
	{ "rdma_resolve_addrinfo", MINUS, "I..." },
	{ "rdma_resolve_route", MINUS, "I9" },
	{ "rdma_set_local_ece", MINUS, "Is" },
	{ "rdma_set_option", MINUS, "I00s1" },
	{ "rdma_write_cm_event", MINUS, "IU00" },
};

/* One object of each kind. */
struct set {
	struct rdma_event_channel *channel;
	struct rdma_cm_id *id;
	struct rdma_cm_event *event;
	struct ibv_pd *pd;
};

static struct ibv_context *context;
static struct sockaddr_storage here;

/* A call that returns -1 and sets errno. */
#define REFUSED(source, words, call, number)                                          \
	do {                                                                          \
		snprintf(what, sizeof(what), "%s (%s)", words, source);               \
		errno = 0;                                                            \
		int answer = (call);                                                  \
		check(answer == -1 && errno == (number), "did not fail with " #number); \
	} while (0)
/* Where librdmacm would crash, as it reads what the program points to. */
#define HERE "librdmacm would crash"

static struct rdma_event_channel *channel(void)
{
	struct rdma_event_channel *c = rdma_create_event_channel();

	must(c != NULL, "an event channel");
	return c;
}

static struct rdma_cm_id *fresh(struct rdma_event_channel *c, enum rdma_port_space ps)
{
	struct rdma_cm_id *id;

	must(!rdma_create_id(c, &id, NULL, ps), "an identifier");
	return id;
}

static struct rdma_cm_event *take(struct rdma_event_channel *c, enum rdma_cm_event_type type)
{
	struct rdma_cm_event *event;

	must(!rdma_get_cm_event(c, &event), "an event");
	must(event->event == type && event->status == 0, rdma_event_str(event->event));
	return event;
}

static void await(struct rdma_event_channel *c, enum rdma_cm_event_type type)
{
	must(!rdma_ack_cm_event(take(c, type)), "an acknowledgement");
}

/* An identifier whose event is on its way, and that event. */
static struct set make(void)
{
	struct set s = { .channel = channel() };

	s.id = fresh(s.channel, RDMA_PS_TCP);
	must(!rdma_resolve_addr(s.id, NULL, (struct sockaddr *)&here, 2000), "a route to itself");
	s.event = take(s.channel, RDMA_CM_EVENT_ADDR_RESOLVED);
	must((s.pd = ibv_alloc_pd(context)) != NULL, "a domain");
	return s;
}

static void destroy(const struct set *s)
{
	check(!ibv_dealloc_pd(s->pd), "the domain is in use");
	check(!rdma_ack_cm_event(s->event), "the event is gone");
	check(!rdma_destroy_id(s->id), "the identifier is gone");
	rdma_destroy_event_channel(s->channel);
}

static long object(const struct set *s, char kind)
{
	switch (kind) {
	case 'E':
	case 'e':
		return (long)s->channel;
	case 'I':
		return (long)s->id;
	case 'V':
		return (long)s->event;
	case 'P':
	case 'p':
		return (long)s->pd;
	default:
		return 0;
	}
}

/* An argument that the call accepts, so that another one is to blame. */
static void fill(const char *name, void *in)
{
	memset(in, 0, 1024);
	if (strstr(name, "addr") || strstr(name, "multicast"))
		memcpy(in, &here, sizeof(here));
	else if (!strcmp(name, "rdma_create_qp"))
		((struct ibv_qp_init_attr *)in)->qp_type = IBV_QPT_RC;
	else if (!strcmp(name, "rdma_create_qp_ex"))
		((struct ibv_qp_init_attr_ex *)in)->qp_type = IBV_QPT_RC;
	else if (!strcmp(name, "rdma_create_srq"))
		((struct ibv_srq_init_attr *)in)->attr.max_wr = 1;
	else if (!strcmp(name, "rdma_create_srq_ex"))
		((struct ibv_srq_init_attr_ex *)in)->attr.max_wr = 1;
	else if (!strcmp(name, "rdma_set_local_ece"))
		((struct ibv_ece *)in)->vendor_id = 1;
}

static void call(void *at, enum fails fails, const long *a)
{
	long (*one)(long, long, long, long, long);
	long answer;

	*(void **)&one = at;
	errno = 0;
	answer = one(a[0], a[1], a[2], a[3], a[4]);
	if (fails == MINUS)
		check((int)answer == -1 && errno == EINVAL, "did not fail with EINVAL");
	else if (fails == NIL)
		check(!answer && errno == EINVAL, "did not return NULL with EINVAL");
}

static void each_argument(void *at, const struct row *row, const struct set *good, const struct set *stale)
{
	static char in[1024] __attribute__((aligned(64))), out[1024] __attribute__((aligned(64)));

	for (size_t wrong = 0; wrong < strlen(row->args); wrong++) {
		char kind = row->args[wrong];
		const char *ways[] = { "null", "destroyed", "of another kind" };

		if (!strchr("EeIVPpsw", kind))
			continue;
		for (int way = 0; way < 3; way++) {
			long a[5] = { 0 };

			if ((strchr("ep", kind) && way == 0) || (strchr("sw", kind) && way > 0))
				continue;
			fill(row->name, in);
			memset(out, 0, sizeof(out));
			for (size_t i = 0; i < strlen(row->args); i++) {
				char k = row->args[i];

				a[i] = k == 's' ? (long)in : k == 'w' ? (long)out : k == 'T' ? RDMA_PS_TCP : k == 'U' ? 18 /* RDMA_CM_EVENT_USER */ :
				       k >= '0' && k <= '9' ? k - '0' : object(good, k);
			}
			a[wrong] = way == 0 ? 0 : way == 1 ? object(stale, kind) : (long)(strchr("Pp", kind) ? (void *)good->id : (void *)good->pd);
			snprintf(what, sizeof(what), "%s: argument %zu is %s", row->name, wrong + 1, ways[way]);
			call(at, row->fails, a);
		}
	}
}

/* States of an identifier, as the kernel names them. */
enum state { IDLE, ADDR_BOUND, ADDR_RESOLVED, ROUTE_RESOLVED, LISTEN, CONNECT, STATES };

static const char *const state_names[] = { "IDLE", "ADDR_BOUND", "ADDR_RESOLVED", "ROUTE_RESOLVED", "LISTEN", "CONNECT" };

#define IN(state) (1u << (state))

static int do_bind(struct rdma_cm_id *id) { return rdma_bind_addr(id, (struct sockaddr *)&here); }
static int do_resolve(struct rdma_cm_id *id) { return rdma_resolve_addr(id, NULL, (struct sockaddr *)&here, 2000); }
static int do_route(struct rdma_cm_id *id) { return rdma_resolve_route(id, 2000); }
static int do_listen(struct rdma_cm_id *id) { return rdma_listen(id, 1); }
static int do_connect(struct rdma_cm_id *id) { return rdma_connect(id, &(struct rdma_conn_param){ .qp_num = 2 }); }
static int do_accept(struct rdma_cm_id *id) { return rdma_accept(id, &(struct rdma_conn_param){ .qp_num = 2 }); }
static int do_reject(struct rdma_cm_id *id) { return rdma_reject(id, NULL, 0); }
static int do_disconnect(struct rdma_cm_id *id) { return rdma_disconnect(id); }
static int do_establish(struct rdma_cm_id *id) { return rdma_establish(id); }
static int do_notify(struct rdma_cm_id *id) { return rdma_notify(id, IBV_EVENT_COMM_EST); }
static int do_join(struct rdma_cm_id *id) { return rdma_join_multicast(id, (struct sockaddr *)&here, NULL); }
static int do_request(struct rdma_cm_id *id)
{
	struct rdma_cm_id *request;

	return rdma_get_request(id, &request);
}

/* Which states allow which call. */
static const struct {
	const char *name;
	int (*call)(struct rdma_cm_id *id);
	unsigned allowed;
	const char *source;
} calls[] = {
	{ "rdma_bind_addr", do_bind, IN(IDLE), "kernel: rdma_bind_addr_dst" },
	{ "rdma_resolve_addr", do_resolve, IN(IDLE) | IN(ADDR_BOUND), "kernel: resolve_prepare_src" },
	{ "rdma_resolve_route", do_route, IN(ADDR_RESOLVED), "kernel: rdma_resolve_route" },
	{ "rdma_listen", do_listen, IN(IDLE) | IN(ADDR_BOUND), "kernel: rdma_listen" },
	{ "rdma_connect", do_connect, IN(ROUTE_RESOLVED), "kernel: rdma_connect_locked" },
	{ "rdma_accept", do_accept, IN(CONNECT), "kernel: rdma_accept" },
	{ "rdma_reject", do_reject, IN(CONNECT), "kernel: rdma_reject, without a cm_id" },
	{ "rdma_disconnect", do_disconnect, IN(CONNECT), "kernel: rdma_disconnect, without a cm_id" },
	{ "rdma_establish", do_establish, IN(CONNECT), "kernel: ucma_accept, rdma_accept" },
	{ "rdma_notify", do_notify, IN(CONNECT), "kernel: rdma_notify, without a cm_id" },
	{ "rdma_join_multicast", do_join, 0, "kernel: rdma_join_multicast, not of datagrams" },
	{ "rdma_get_request", do_request, 0, "rdma_get_request(3): of a channel" },
};

static void states(void)
{
	struct rdma_event_channel *c = channel();
	struct rdma_cm_id *ids[STATES], *request;
	struct sockaddr_storage to = here;
	struct rdma_cm_event *event;
	struct rdma_conn_param param = { .qp_num = 2, .retry_count = 7 };
	struct ibv_ece ece;

	snprintf(what, sizeof(what), "identifiers in every state");
	for (int i = 0; i < STATES; i++)
		ids[i] = fresh(c, RDMA_PS_TCP);
	must(!do_bind(ids[ADDR_BOUND]), "bind");
	must(!do_resolve(ids[ADDR_RESOLVED]), "resolve");
	await(c, RDMA_CM_EVENT_ADDR_RESOLVED);
	must(!do_bind(ids[LISTEN]) && !rdma_listen(ids[LISTEN], 4), "listen");
	((struct sockaddr_in *)&to)->sin_port = rdma_get_src_port(ids[LISTEN]);
	for (int i = 0; i < 2; i++) {
		struct rdma_cm_id *id = ids[i ? CONNECT : ROUTE_RESOLVED];

		must(!rdma_resolve_addr(id, NULL, (struct sockaddr *)&to, 2000), "resolve");
		await(c, RDMA_CM_EVENT_ADDR_RESOLVED);
		must(!do_route(id), "route");
		await(c, RDMA_CM_EVENT_ROUTE_RESOLVED);
	}
	/* A vendor's options travel with the request; those that are granted travel with the answer, in
	 * the name of the requester. */
	must(!rdma_set_local_ece(ids[CONNECT], &(struct ibv_ece){ .vendor_id = 0x0c42a1, .options = 0x87654321 }), "a wish");
	must(!rdma_connect(ids[CONNECT], &param), "connect");
	event = take(c, RDMA_CM_EVENT_CONNECT_REQUEST);
	request = event->id;
	must(!rdma_ack_cm_event(event), "the event");
	must(!rdma_get_remote_ece(request, &ece) && ece.vendor_id == 0x0c42a1 && ece.options == 0x87654321, "the options arrived");
	must(!rdma_set_local_ece(request, &(struct ibv_ece){ .vendor_id = 7, .options = 0x4321 }), "a grant");
	param.qp_num = 3;
	must(!rdma_accept(request, &param), "accept");
	await(c, RDMA_CM_EVENT_CONNECT_RESPONSE);
	must(!rdma_get_remote_ece(ids[CONNECT], &ece) && ece.vendor_id == 0x0c42a1 && ece.options == 0x4321, "the granted options arrived");
	must(!rdma_establish(ids[CONNECT]), "establish");
	await(c, RDMA_CM_EVENT_ESTABLISHED);

	for (size_t k = 0; k < COUNT(calls); k++)
		for (int state = 0; state < STATES; state++) {
			char words[128];

			if (calls[k].allowed & IN(state))
				continue;
			snprintf(words, sizeof(words), "%s in %s", calls[k].name, state_names[state]);
			REFUSED(calls[k].source, words, calls[k].call(ids[state]), EINVAL);
		}
	/* A refusal changed nothing: each identifier continues from its state. */
	snprintf(what, sizeof(what), "after the refusals");
	must(!do_bind(ids[IDLE]), "bind");
	must(!do_listen(ids[ADDR_BOUND]), "listen");
	must(!do_route(ids[ADDR_RESOLVED]), "route");
	await(c, RDMA_CM_EVENT_ROUTE_RESOLVED);
	param.qp_num = 4;
	must(!rdma_connect(ids[ROUTE_RESOLVED], &param), "connect");
	event = take(c, RDMA_CM_EVENT_CONNECT_REQUEST);
	must(event->listen_id == ids[LISTEN], "the listener");
	struct rdma_cm_id *second = event->id;
	must(!rdma_ack_cm_event(event) && !rdma_reject(second, NULL, 0) && !rdma_destroy_id(second), "reject");
	must(!rdma_get_cm_event(c, &event) && event->event == RDMA_CM_EVENT_REJECTED && !rdma_ack_cm_event(event), "the rejection");
	must(!rdma_disconnect(ids[CONNECT]), "disconnect");
	await(c, RDMA_CM_EVENT_DISCONNECTED);
	must(!rdma_disconnect(request), "the answer");
	await(c, RDMA_CM_EVENT_DISCONNECTED);
	must(!rdma_destroy_id(request), "the request");
	for (int i = 0; i < STATES; i++)
		must(!rdma_destroy_id(ids[i]), "an identifier");
	rdma_destroy_event_channel(c);
}

/* What is wrong in itself: numbers, lengths, flags, combinations. */
static void rules(const struct set *stale)
{
	struct rdma_event_channel *c = channel();
	struct rdma_cm_id *id = fresh(c, RDMA_PS_TCP), *bound = fresh(c, RDMA_PS_TCP), *ud = fresh(c, RDMA_PS_UDP), *other;
	struct sockaddr_storage odd = here;
	struct rdma_addrinfo *info;
	struct rdma_cm_join_mc_attr_ex join = { .comp_mask = 0, .addr = (struct sockaddr *)&here };
	struct ibv_ece ece = { .vendor_id = 0 };
	struct ibv_qp_init_attr qp = { .qp_type = IBV_QPT_RC, .cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 } };
	struct ibv_srq_init_attr srq = { .attr = { .max_wr = 1, .max_sge = 1 } };
	struct rdma_conn_param param = { .qp_num = 2 };
	int (*write_event)(struct rdma_cm_id *, int, int, uint64_t) = dlsym(RTLD_DEFAULT, "rdma_write_cm_event");
	uint8_t byte = 32;
	int value = 1;
	long wide = 1;

	must(!do_bind(bound) && !do_bind(ud), "bind");
	REFUSED("rdma_create_id(3)", "rdma_create_id: no such port space", rdma_create_id(c, &other, NULL, 0x7777), EINVAL);

	odd.ss_family = 77;
	REFUSED("rdma_bind_addr(3)", "rdma_bind_addr: no such family", rdma_bind_addr(id, (struct sockaddr *)&odd), EINVAL);
	REFUSED("rdma_resolve_addr(3)", "rdma_resolve_addr: no such family", rdma_resolve_addr(id, NULL, (struct sockaddr *)&odd, 100), EINVAL);
	REFUSED("rdma_resolve_addr(3)", "rdma_resolve_addr: no such family of the source", rdma_resolve_addr(id, (struct sockaddr *)&odd, (struct sockaddr *)&here, 100), EINVAL);
	REFUSED("kernel: rdma_leave_multicast", "rdma_leave_multicast: not joined", rdma_leave_multicast(ud, (struct sockaddr *)&here), EADDRNOTAVAIL);
	REFUSED("rdma_join_multicast_ex(3)", "rdma_join_multicast_ex: no address in the mask", rdma_join_multicast_ex(ud, &join, NULL), EINVAL);
	join.comp_mask = 1u << 30;
	REFUSED("rdma_join_multicast_ex(3)", "rdma_join_multicast_ex: an unknown bit", rdma_join_multicast_ex(ud, &join, NULL), ENOTSUP);
	join.comp_mask = RDMA_CM_JOIN_MC_ATTR_ADDRESS | RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS, join.join_flags = 77;
	REFUSED("rdma_join_multicast_ex(3)", "rdma_join_multicast_ex: unknown flags", rdma_join_multicast_ex(ud, &join, NULL), EINVAL);
	join.join_flags = RDMA_MC_JOIN_FLAG_FULLMEMBER, join.addr = NULL;
	REFUSED(HERE, "rdma_join_multicast_ex: no address", rdma_join_multicast_ex(ud, &join, NULL), EINVAL);

	REFUSED("kernel: ucma_set_option_id", "rdma_set_option: no such option", rdma_set_option(id, RDMA_OPTION_ID, 99, &value, 4), ENOSYS);
	REFUSED("kernel: ucma_set_option_level", "rdma_set_option: no such level", rdma_set_option(id, 7, 0, &value, 4), ENOSYS);
	REFUSED("kernel: ucma_set_option_id", "rdma_set_option: a type of service too long", rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &wide, sizeof(wide)), EINVAL);
	REFUSED("kernel: ucma_set_option_id", "rdma_set_option: a type of service of no bytes", rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &byte, 0), EINVAL);
	REFUSED("kernel: ucma_set_option", "rdma_set_option: as long as memory", rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &value, SIZE_MAX), EINVAL);
	REFUSED("kernel: rdma_set_ack_timeout", "rdma_set_option: a timeout of datagrams", rdma_set_option(ud, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &byte, 1), EINVAL);
	REFUSED("kernel: ucma_set_option_ib", "rdma_set_option: a path of no address", rdma_set_option(id, RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, &value, 4), EINVAL);

	REFUSED("librdmacm: rdma_set_local_ece", "rdma_set_local_ece: no vendor", rdma_set_local_ece(id, &ece), EINVAL);
	ece.vendor_id = 1, ece.comp_mask = 1;
	REFUSED("librdmacm: rdma_set_local_ece", "rdma_set_local_ece: an unknown bit", rdma_set_local_ece(id, &ece), EINVAL);

	REFUSED("rdma_write_cm_event(3)", "rdma_write_cm_event: an event of the library's own", write_event(id, RDMA_CM_EVENT_ESTABLISHED, 0, 0), EINVAL);
	REFUSED("rdma_getaddrinfo(3)", "rdma_getaddrinfo: neither name nor service", rdma_getaddrinfo(NULL, NULL, NULL, &info), EINVAL);

	REFUSED(HERE, "rdma_create_qp: a domain that was destroyed", rdma_create_qp(bound, stale->pd, &qp), EINVAL);
	qp.send_cq = (struct ibv_cq *)bound->pd;
	REFUSED(HERE, "rdma_create_qp: a domain as CQ", rdma_create_qp(bound, NULL, &qp), EINVAL);
	qp.send_cq = NULL, qp.qp_type = 77;
	REFUSED("rdma_create_qp(3)", "rdma_create_qp: no such type", rdma_create_qp(bound, NULL, &qp), EINVAL);
	qp.qp_type = IBV_QPT_UD;
	REFUSED("kernel: ib_modify_qp_is_ok", "rdma_create_qp: datagrams on a connection", rdma_create_qp(bound, NULL, &qp), EINVAL);
	qp.qp_type = IBV_QPT_RC, qp.cap.max_send_wr = UINT32_MAX;
	REFUSED("kernel: rxe_cq_chk_attr", "rdma_create_qp: as many requests as there are numbers", rdma_create_qp(bound, NULL, &qp), EINVAL);
	srq.attr.max_wr = UINT32_MAX;
	REFUSED("kernel: rxe_srq_chk_init", "rdma_create_srq: as many as there are numbers", rdma_create_srq(bound, NULL, &srq), EINVAL);
	qp.cap.max_send_wr = 1;
	must(!rdma_create_qp(bound, NULL, &qp), "a QP");
	REFUSED("librdmacm: rdma_create_qp_ex", "rdma_create_qp: twice", rdma_create_qp(bound, NULL, &qp), EINVAL);
	REFUSED("librdmacm: rdma_set_local_ece", "rdma_set_local_ece: with a QP", rdma_set_local_ece(bound, &(struct ibv_ece){ .vendor_id = 1 }), EINVAL);
	REFUSED("librdmacm: rdma_get_remote_ece", "rdma_get_remote_ece: with a QP", rdma_get_remote_ece(bound, &ece), EINVAL);
	rdma_destroy_qp(bound);
	rdma_destroy_qp(bound);

	/* The parameters of a valid connection. */
	must(!do_resolve(id), "resolve");
	await(c, RDMA_CM_EVENT_ADDR_RESOLVED);
	must(!do_route(id), "route");
	await(c, RDMA_CM_EVENT_ROUTE_RESOLVED);
	REFUSED("rdma_connect(3)", "rdma_connect: neither QP nor its number", rdma_connect(id, NULL), EINVAL);
	param.responder_resources = 200;
	REFUSED("librdmacm: ucma_valid_param", "rdma_connect: more READs than the device has", rdma_connect(id, &param), EINVAL);
	param.responder_resources = 1, param.initiator_depth = 200;
	REFUSED("librdmacm: ucma_valid_param", "rdma_connect: a depth that the device does not have", rdma_connect(id, &param), EINVAL);
	param.initiator_depth = 1, param.private_data = &odd, param.private_data_len = 57;
	REFUSED("rdma_connect(3): 56 bytes", "rdma_connect: too much private data", rdma_connect(id, &param), EINVAL);
	must(!rdma_destroy_id(id) && !rdma_destroy_id(bound) && !rdma_destroy_id(ud), "identifiers");
	REFUSED(HERE, "rdma_destroy_id: twice", rdma_destroy_id(id), EINVAL);
	rdma_destroy_event_channel(c);
	rdma_destroy_event_channel(c);
}

int main(void)
{
	struct rdma_event_channel *c;
	struct ibv_device **devices;
	struct set good, stale;
	struct rdma_cm_id *probe;
	union ibv_gid gid;

	guard(120);
	devices = ibv_get_device_list(NULL);
	must(devices && devices[0] && (context = ibv_open_device(devices[0])), "a device");
	must(!ibv_query_gid(context, 1, 0, &gid), "an address");
	if (!memcmp(gid.raw, "\0\0\0\0\0\0\0\0\0\0\377\377", 12)) {
		struct sockaddr_in *v4 = (struct sockaddr_in *)&here;

		v4->sin_family = AF_INET;
		memcpy(&v4->sin_addr, gid.raw + 12, 4);
	} else {
		struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)&here;

		v6->sin6_family = AF_INET6;
		memcpy(&v6->sin6_addr, gid.raw, 16);
	}
	must(!ibv_close_device(context), "a device that closes");

	/* Domains are of the connection manager's own opening of the device. */
	c = channel();
	probe = fresh(c, RDMA_PS_TCP);
	must(!do_bind(probe), "bind");
	context = probe->verbs;
	good = make();
	stale = make();
	destroy(&stale);
	for (size_t i = 0; i < COUNT(names); i++) {
		size_t row = 0;
		void *at;

		snprintf(what, sizeof(what), "%s", names[i].name);
		while (row < COUNT(rows) && strcmp(rows[row].name, names[i].name))
			row++;
		at = dlvsym(RTLD_DEFAULT, names[i].name, names[i].node);
		check(row < COUNT(rows), "has no row");
		check(at != NULL, "has no address");
		if (row < COUNT(rows) && at)
			each_argument(at, &rows[row], &good, &stale);
	}
	snprintf(what, sizeof(what), "%zu calls, %zu rows", COUNT(names), COUNT(rows));
	check(COUNT(names) == COUNT(rows), "there are rows for no call");
	states();
	rules(&stale);
	snprintf(what, sizeof(what), "the end");
	destroy(&good);
	must(!rdma_destroy_id(probe), "the identifier");
	rdma_destroy_event_channel(c);
	ibv_free_device_list(devices);
	return verdict();
}
