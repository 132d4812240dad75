/* HSA memory under verbs while a fault plan moves it and takes it away.
 *
 * "storm N": N WRITEs into a dma-buf, each checked through HSA; one key for all of them. "dead N":
 * the same, until the key is dead. "waits N": N copies behind signals, each waited for. */
#include "hsa_api.h"
#include "rc_loopback.h"

static const int ACCESS = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
static unsigned char back[LOOP_SIZE];

static void waits(char *a, unsigned count)
{
	hsa_signal_t done;
	char *b = hsa_device_memory(MIB);

	HSA(hsa_signal_create(1, 0, NULL, &done));
	for (unsigned i = 0; i < count; i++) {
		hsa_signal_store_relaxed(done, 1);
		HSA(hsa_amd_memory_async_copy(b, gpus[0], a, gpus[0], MIB, 0, NULL, done));
		CHECK(hsa_signal_wait_scacquire(done, HSA_SIGNAL_CONDITION_LT, 1, UINT64_MAX, HSA_WAIT_STATE_BLOCKED) == 0);
	}
	HSA(hsa_signal_destroy(done));
}

int main(int argc, char **argv)
{
	unsigned count = argc > 2 ? (unsigned)atoi(argv[2]) : 0;
	int fd, status = 0, is_storm;
	uint64_t offset;
	struct ibv_mr *mr;
	struct loop l;
	char *a;

	CHECK(argc > 1);
	hsa_start();
	a = hsa_device_memory(MIB);
	if (!strcmp(argv[1], "waits")) {
		waits(a, count);
		printf("ok\n");
		return 0;
	}
	is_storm = !strcmp(argv[1], "storm");
	CHECK(loop_open(&l) == 0);
	HSA(export_dmabuf(a, MIB, &fd, &offset));
	mr = ibv_reg_dmabuf_mr(l.pd, offset, MIB, (uintptr_t)a, fd, ACCESS);
	CHECK(mr);
	HSA(close_dmabuf(fd));
	for (unsigned i = 0; i < count && !status; i++) {
		char *at = a + i % 15 * LOOP_SIZE;

		for (unsigned j = 0; j < LOOP_SIZE; j++)
			l.buf[j] = (unsigned char)(j * 31 + (j >> 8) + i * 7);
		CHECK(loop_post_write(&l, l.buf, LOOP_SIZE, (uintptr_t)at, mr->rkey) == 0);
		status = loop_poll(l.cq);
		if (!is_storm || status)
			continue;
		HSA(hsa_memory_copy(back, at, LOOP_SIZE));
		CHECK(!memcmp(back, l.buf, LOOP_SIZE));
	}
	printf("%s\nok\n", ibv_wc_status_str(status));
	return is_storm && status;
}
