/* HSA memory under verbs: exports a part of an allocation with its offset, registers it, and writes
 * it by RDMA. The same GPU is a DRM render node, which recognises the dma-buf as its own memory. */
#include "hsa_api.h"
#include "rc_loopback.h"

#include <fcntl.h>
#include <sys/ioctl.h>

static const int ACCESS = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;

struct prime {
	uint32_t handle, flags;
	int32_t fd;
};

int main(void)
{
	static unsigned char back[LOOP_SIZE];
	struct prime import = { 0 };
	uint64_t offset;
	struct ibv_mr *mr;
	struct loop l;
	char *a, *from;
	int fd, node;

	hsa_start();
	CHECK(loop_open(&l) == 0 && loop_write(&l, 1) == 0);
	a = hsa_device_memory(MIB);
	/* The address itself cannot be registered. */
	CHECK_ERRNO(!ibv_reg_mr(l.pd, a, MIB, ACCESS), EFAULT);
	from = a + 12345;
	HSA(export_dmabuf(from, 2 * LOOP_SIZE, &fd, &offset));
	CHECK(offset == 12345);
	mr = ibv_reg_dmabuf_mr(l.pd, offset, 2 * LOOP_SIZE, (uintptr_t)from, fd, ACCESS);
	CHECK(mr);
	import.fd = fd;
	node = open("/dev/dri/renderD128", O_RDWR | O_CLOEXEC);
	CHECK(node >= 0 && ioctl(node, _IOWR('d', 0x2e, struct prime), &import) == 0 && import.handle);
	HSA(close_dmabuf(fd));
	for (unsigned i = 0; i < LOOP_SIZE; i++)
		l.buf[i] = (unsigned char)(i * 31 + (i >> 8));
	CHECK(loop_post_write(&l, l.buf, LOOP_SIZE, (uintptr_t)from + 1000, mr->rkey) == 0);
	CHECK(loop_poll(l.cq) == IBV_WC_SUCCESS);
	HSA(hsa_memory_copy(back, from + 1000, LOOP_SIZE));
	CHECK(!memcmp(back, l.buf, LOOP_SIZE));
	/* The region keeps the memory after the program has freed it. */
	HSA(hsa_memory_free(a));
	CHECK(loop_post_write(&l, l.buf, LOOP_SIZE, (uintptr_t)from, mr->rkey) == 0);
	CHECK(loop_poll(l.cq) == IBV_WC_SUCCESS);
	CHECK(ibv_dereg_mr(mr) == 0 && loop_close(&l) == 0 && close(node) == 0);
	HSA(hsa_shut_down());
	printf("ok\n");
	return 0;
}
