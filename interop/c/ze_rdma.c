/* Level Zero memory under verbs: registers the dma-buf that the driver reports, and writes it by
 * RDMA. */
#include "ze.h"
#include "rc_loopback.h"

static const int ACCESS = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;

static const ze_external_memory_export_desc_t EXPORTED = { .stype = ZE_STRUCTURE_TYPE_EXTERNAL_MEMORY_EXPORT_DESC,
	.flags = ZE_EXTERNAL_MEMORY_TYPE_FLAG_DMA_BUF };

/* Memory that the CPU reaches is a dma-buf, too, if it was allocated for export: the CPU reads what
 * a peer writes there, in each mapping. Its pages cannot be pinned by their address. */
static void exported_host_memory(struct loop *l, size_t align)
{
	ze_external_memory_import_fd_t import = { .stype = ZE_STRUCTURE_TYPE_EXTERNAL_MEMORY_IMPORT_FD,
		.flags = ZE_EXTERNAL_MEMORY_TYPE_FLAG_DMA_BUF };
	unsigned char *a = ze_host_memory(&EXPORTED, LOOP_SIZE + 4096, align), *b;
	struct ibv_mr *mr;

	CHECK(a && (!align || (uintptr_t)a % align == 0));
	memset(a, 0x77, LOOP_SIZE + 4096);
	import.fd = ze_dma_buf_of(a, ZE_MEMORY_TYPE_HOST);
	CHECK(import.fd == ze_dma_buf_of(a + 100, ZE_MEMORY_TYPE_HOST));
	b = ze_host_memory(&import, LOOP_SIZE + 4096, 0);
	CHECK(b && b != a && b[0] == 0x77);
	mr = ibv_reg_dmabuf_mr(l->pd, 0, LOOP_SIZE + 4096, (uintptr_t)a, import.fd, ACCESS);
	CHECK(mr);
	CHECK(loop_post_write(l, l->buf, LOOP_SIZE, (uintptr_t)a + 10, mr->rkey) == 0);
	CHECK(loop_poll(l->cq) == IBV_WC_SUCCESS);
	CHECK(a[9] == 0x77 && !memcmp(a + 10, l->buf, LOOP_SIZE) && a[10 + LOOP_SIZE] == 0x77);
	CHECK(!memcmp(a, b, LOOP_SIZE + 4096));
	CHECK(ibv_dereg_mr(mr) == 0);
	CHECK_ERRNO(!ibv_reg_mr(l->pd, b, LOOP_SIZE, ACCESS), EFAULT);
	ZE(zeMemFree(context, a));
	CHECK(b[10] == l->buf[0]);
	ZE(zeMemFree(context, b));
}

/* All other memory is plain pages, which can be pinned by their address and are not a dma-buf. */
static void plain_host_memory(struct loop *l)
{
	ze_external_memory_export_fd_t file = { .stype = ZE_STRUCTURE_TYPE_EXTERNAL_MEMORY_EXPORT_FD,
		.flags = ZE_EXTERNAL_MEMORY_TYPE_FLAG_DMA_BUF, .fd = -1 };
	ze_memory_allocation_properties_t about = { .stype = ZE_STRUCTURE_TYPE_MEMORY_ALLOCATION_PROPERTIES, .pNext = &file };
	ze_host_mem_alloc_desc_t desc = { .stype = ZE_STRUCTURE_TYPE_HOST_MEM_ALLOC_DESC, .pNext = &EXPORTED };
	ze_ipc_mem_handle_t handle;
	char *a = ze_host_memory(NULL, LOOP_SIZE, 0);
	struct ibv_mr *mr = ibv_reg_mr(l->pd, a, LOOP_SIZE, ACCESS);
	void *too_much = NULL;

	CHECK(mr && loop_post_write(l, l->buf, LOOP_SIZE, (uintptr_t)a, mr->rkey) == 0);
	CHECK(loop_poll(l->cq) == IBV_WC_SUCCESS && !memcmp(a, l->buf, LOOP_SIZE));
	CHECK(ibv_dereg_mr(mr) == 0);
	ZE_IS(zeMemGetAllocProperties(context, a, &about, NULL), ZE_RESULT_ERROR_UNSUPPORTED_FEATURE);
	ZE_IS(zeMemGetIpcHandle(context, a, &handle), ZE_RESULT_ERROR_UNSUPPORTED_FEATURE);
	ZE(zeMemFree(context, a));
	/* More than the GPU's share of system memory. */
	ZE_IS(zeMemAllocHost(context, &desc, 5000 * MIB, 0, &too_much), ZE_RESULT_ERROR_OUT_OF_HOST_MEMORY);
}

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
	/* The address itself cannot be registered. */
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
	/* The region keeps the memory after the program has freed it. */
	ZE(zeMemFree(context, a));
	CHECK(loop_post_write(&l, l.buf, LOOP_SIZE, (uintptr_t)a + 8000, mr->rkey) == 0);
	CHECK(loop_poll(l.cq) == IBV_WC_SUCCESS);
	CHECK(ibv_dereg_mr(mr) == 0);
	exported_host_memory(&l, 0);
	exported_host_memory(&l, 1 << 16);
	plain_host_memory(&l);
	CHECK(loop_close(&l) == 0);
	printf("ok\n");
	return 0;
}
