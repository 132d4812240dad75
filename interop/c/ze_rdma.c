/* Memory of Level Zero under verbs: the dma-buf that the driver tells of is registered, and written by RDMA. */
#include "ze.h"
#include "rc_loopback.h"

static const int ACCESS = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;

int main(void)
{
	static unsigned char back[LOOP_SIZE];
	ze_command_list_handle_t now;
	struct ibv_mr *mr;
	struct loop l;
	char *a;
	int fd;

	ze_start();
	now = ze_immediate();
	CHECK(loop_open(&l) == 0 && loop_write(&l, 1) == 0);
	/* The address itself is nobody's memory. */
	a = ze_device_memory(MIB);
	CHECK_ERRNO(!ibv_reg_mr(l.pd, a, MIB, ACCESS), EFAULT);
	fd = ze_dma_buf(a);
	mr = ibv_reg_dmabuf_mr(l.pd, 4096, MIB - 4096, (uintptr_t)a + 4096, fd, ACCESS);
	CHECK(mr);
	for (unsigned i = 0; i < LOOP_SIZE; i++)
		l.buf[i] = (unsigned char)(i * 31 + (i >> 8));
	CHECK(loop_post_write(&l, l.buf, LOOP_SIZE, (uintptr_t)a + 8000, mr->rkey) == 0);
	CHECK(loop_poll(l.cq) == IBV_WC_SUCCESS);
	ZE(zeCommandListAppendMemoryCopy(now, back, a + 8000, LOOP_SIZE, NULL, 0, NULL));
	CHECK(!memcmp(back, l.buf, LOOP_SIZE));
	/* The region holds the memory when the program has freed it. */
	ZE(zeMemFree(context, a));
	CHECK(loop_post_write(&l, l.buf, LOOP_SIZE, (uintptr_t)a + 8000, mr->rkey) == 0);
	CHECK(loop_poll(l.cq) == IBV_WC_SUCCESS);
	CHECK(ibv_dereg_mr(mr) == 0 && loop_close(&l) == 0);
	printf("ok\n");
	return 0;
}
