/* Buffers of two GPUs under faults, written and read by two NICs and by CUDA, at random and with a
 * byte oracle.
 *
 *     gpu_storm SEED COUNT
 *
 * A buffer belongs to one NIC, which keeps it registered under one key throughout. peerdma0 follows
 * moves; peerdma1 does not, and its buffers stay. */
#define _GNU_SOURCE
#include "cuda_api.h"
#include "rc_loopback.h"

#define LEN ((size_t)1 << 20)
#define BUFFERS 8

static const int ACCESS = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;

struct buffer {
	cu_ptr at;
	struct ibv_mr *mr;
	struct loop *nic;
	unsigned char *oracle;
};

static struct buffer buffers[BUFFERS];
static struct loop nics[2];
static uint64_t state;
static unsigned char scratch[LOOP_SIZE];

static uint32_t below(uint32_t end)
{
	state = state * 6364136223846793005u + 1442695040888963407u;
	return (uint32_t)(state >> 33) % end;
}

static struct ibv_context *named(const char *name)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *context = NULL;

	for (int i = 0; list && list[i]; i++)
		if (!strcmp(ibv_get_device_name(list[i]), name))
			context = ibv_open_device(list[i]);
	CHECK(context);
	ibv_free_device_list(list);
	return context;
}

static void prepare(int index, cu_context context)
{
	struct buffer *buffer = &buffers[index];
	int fd;

	CU(cuCtxSetCurrent(context));
	buffer->nic = &nics[index / 2 % 2];
	buffer->oracle = calloc(1, LEN);
	CHECK(buffer->oracle);
	CU(cuMemAlloc_v2(&buffer->at, LEN));
	CU(cuMemsetD8_v2(buffer->at, 0, LEN));
	CU(cuMemGetHandleForAddressRange(&fd, buffer->at, LEN, 1, 0));
	buffer->mr = ibv_reg_dmabuf_mr(buffer->nic->pd, 0, LEN, buffer->at, fd, ACCESS);
	CHECK(buffer->mr && close(fd) == 0);
}

static void noise(unsigned char *bytes, size_t len)
{
	for (size_t i = 0; i < len; i++)
		bytes[i] = (unsigned char)below(256);
}

static int transfer(struct buffer *buffer, size_t at, uint32_t len, enum ibv_wr_opcode opcode)
{
	struct loop *l = buffer->nic;
	struct ibv_sge sge = { .addr = (uintptr_t)l->buf, .length = len, .lkey = l->mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED,
				  .wr.rdma = { .remote_addr = buffer->at + at, .rkey = buffer->mr->rkey } };
	struct ibv_send_wr *bad;

	CHECK(ibv_post_send(l->qp[0], &wr, &bad) == 0);
	return loop_poll(l->cq);
}

static void step(void)
{
	struct buffer *buffer = &buffers[below(BUFFERS)], *other = &buffers[below(BUFFERS)];
	uint32_t len = 1 + below(LOOP_SIZE - 1);
	size_t at = below((uint32_t)(LEN - len)), from = below((uint32_t)(LEN - len));

	switch (below(6)) {
	case 0:
	case 1:
		noise(buffer->nic->buf, len);
		memcpy(buffer->oracle + at, buffer->nic->buf, len);
		CHECK(transfer(buffer, at, len, IBV_WR_RDMA_WRITE) == IBV_WC_SUCCESS);
		break;
	case 2:
		CHECK(transfer(buffer, at, len, IBV_WR_RDMA_READ) == IBV_WC_SUCCESS);
		CHECK(!memcmp(buffer->nic->buf, buffer->oracle + at, len));
		break;
	case 3:
		noise(scratch, len);
		memcpy(buffer->oracle + at, scratch, len);
		CU(cuMemcpyHtoD_v2(buffer->at + at, scratch, len));
		break;
	case 4:
		CU(cuMemcpyDtoH_v2(scratch, buffer->at + at, len));
		CHECK(!memcmp(scratch, buffer->oracle + at, len));
		break;
	default:
		if (buffer == other)
			break;
		CU(cuMemcpyDtoD_v2(buffer->at + at, other->at + from, len));
		memcpy(buffer->oracle + at, other->oracle + from, len);
	}
}

int main(int argc, char **argv)
{
	cu_context contexts[2];
	static unsigned char whole[LEN];

	CHECK(argc == 3);
	state = strtoull(argv[1], NULL, 0);
	cuda_load();
	CU(cuInit(0));
	for (int i = 0; i < 2; i++)
		CU(cuCtxCreate_v2(&contexts[i], 0, i));
	CHECK(loop_open_on(&nics[0], named("peerdma0")) == 0 && loop_open_on(&nics[1], named("peerdma1")) == 0);
	for (int i = 0; i < BUFFERS; i++)
		prepare(i, contexts[i % 2]);
	for (int n = atoi(argv[2]); n > 0; n--)
		step();
	for (int i = 0; i < BUFFERS; i++) {
		CU(cuMemcpyDtoH_v2(whole, buffers[i].at, LEN));
		CHECK(!memcmp(whole, buffers[i].oracle, LEN));
		CHECK(ibv_dereg_mr(buffers[i].mr) == 0);
	}
	printf("ok\n");
	return 0;
}
