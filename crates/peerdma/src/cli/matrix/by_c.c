/* One exporter's row of the matrix, as a C program gets it: plain libibverbs, and the ioctls of
 * the exporter's driver.
 *
 * by_c EXPORTER: for each NIC "NAME ok FD" or "NAME errno N" of a buffer of its own, which is
 * written and read by RDMA; then two lines "static FD" for an importer of another kind. After each
 * line that names a descriptor it waits for one. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <err.h>
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#define SIZE 65536u
#define LENGTH 64u
#define MUST(done) ((done) ? (void)0 : err(1, "by_c: %s", #done))

static const char *exporter, *node;
static struct ibv_context *memory_nic;

static int open_node(void)
{
	int fd = open(node, O_RDWR | O_CLOEXEC);

	MUST(fd >= 0);
	return fd;
}

static int of_udmabuf(void)
{
	struct { uint32_t memfd, flags; uint64_t offset, size; } make = { .flags = 1, .size = SIZE };
	int device = open("/dev/udmabuf", O_RDWR | O_CLOEXEC), memfd = memfd_create("matrix", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	MUST(device >= 0 && memfd >= 0 && ftruncate(memfd, SIZE) == 0 && fcntl(memfd, F_ADD_SEALS, F_SEAL_SHRINK) == 0);
	make.memfd = (uint32_t)memfd;
	return ioctl(device, _IOW('u', 0x42, make), &make);
}

static int of_drm(void)
{
	struct { uint64_t size, align, domains, flags; } amd = { .size = SIZE, .domains = 4, .flags = 1 };
	struct { uint64_t ext, size; uint32_t place, flags, vm, handle; uint16_t cache, pad[3]; uint64_t rest[2]; } xe = {
		.size = SIZE, .place = 3, .cache = 2 };
	struct { uint16_t class, instance; } where[2] = { { 1, 0 }, { 0, 0 } };
	struct { uint64_t next; uint32_t name, flags, rest[4], pad, count; uint64_t list; } regions = {
		.count = 2, .list = (uintptr_t)where };
	struct { uint64_t size; uint32_t handle, flags; uint64_t ext; } i915 = { .size = SIZE, .ext = (uintptr_t)&regions };
	struct { uint32_t handle, flags; int32_t fd; } prime = { .flags = O_RDWR | O_CLOEXEC };
	int device = open_node();

	if (!strcmp(exporter, "amdgpu")) {
		MUST(ioctl(device, _IOWR('d', 0x40, amd), &amd) == 0);
		memcpy(&prime.handle, &amd, sizeof(prime.handle));
	} else if (!strcmp(exporter, "xe")) {
		MUST(ioctl(device, _IOWR('d', 0x41, xe), &xe) == 0);
		prime.handle = xe.handle;
	} else {
		MUST(ioctl(device, _IOWR('d', 0x7c, i915), &i915) == 0);
		prime.handle = i915.handle;
	}
	MUST(ioctl(device, _IOWR('d', 0x2d, prime), &prime) == 0);
	close(device);
	return prime.fd;
}

static int of_habanalabs(void)
{
	static int device = -1;
	struct { uint64_t word[3]; uint32_t op, flags, ctx_id, num; } alloc = { .word = { SIZE, SIZE } }, map = { .op = 2 },
		export = { .op = 5, .flags = O_RDWR | O_CLOEXEC };
	int fd;

	if (device < 0)
		device = open_node();
	MUST(ioctl(device, _IOWR('d', 0x44, alloc), &alloc) == 0);
	map.word[1] = alloc.word[0];
	MUST(ioctl(device, _IOWR('d', 0x44, map), &map) == 0);
	export.word[0] = map.word[0];
	export.word[1] = SIZE;
	MUST(ioctl(device, _IOWR('d', 0x44, export), &export) == 0);
	memcpy(&fd, export.word, sizeof(fd));
	return fd;
}

static int of_vfio(void)
{
	static int device = -1;
	struct { uint32_t argsz, flags; int32_t iommufd; uint32_t devid; } bind = { .argsz = sizeof(bind) };
	struct { uint32_t argsz, flags, region, open_flags, buf_flags, count; uint64_t offset, length; } get = {
		.argsz = sizeof(get), .flags = 1u << 16 | 11, .open_flags = O_RDWR | O_CLOEXEC, .count = 1, .length = SIZE };

	if (device < 0) {
		device = open_node();
		bind.iommufd = open("/dev/iommu", O_RDWR | O_CLOEXEC);
		MUST(ioctl(device, _IO(';', 118), &bind) == 0);
	}
	return ioctl(device, _IO(';', 117), &get);
}

static int of_nvidia(void)
{
	static void *cuda;
	int (*init)(unsigned), (*retain)(void **, int), (*current)(void *), (*alloc)(uint64_t *, size_t);
	int (*export)(void *, uint64_t, size_t, int, uint64_t), fd;
	uint64_t at;
	void *context;

	if (!cuda)
		cuda = dlopen("libcuda.so.1", RTLD_NOW);
	MUST(cuda);
	*(void **)&init = dlsym(cuda, "cuInit");
	*(void **)&retain = dlsym(cuda, "cuDevicePrimaryCtxRetain");
	*(void **)&current = dlsym(cuda, "cuCtxSetCurrent");
	*(void **)&alloc = dlsym(cuda, "cuMemAlloc_v2");
	*(void **)&export = dlsym(cuda, "cuMemGetHandleForAddressRange");
	MUST(init && retain && current && alloc && export);
	MUST(!init(0) && !retain(&context, 0) && !current(context) && !alloc(&at, SIZE) && !export(&fd, at, SIZE, 1, 0));
	return fd;
}

static int of_nic(void)
{
	struct ibv_alloc_dm_attr attr = { .length = SIZE };
	static struct ibv_dm *dm;
	int (*export)(struct ibv_dm *);

	/* Newer than the headers of some systems. */
	*(void **)&export = dlsym(RTLD_DEFAULT, "ibv_dm_export_dmabuf_fd");
	if (!dm)
		dm = ibv_alloc_dm(memory_nic, &attr);
	MUST(dm && export);
	return export(dm);
}

static int new_buffer(void)
{
	int fd = !strcmp(exporter, "memory") ? of_udmabuf() : !strcmp(exporter, "habanalabs") ? of_habanalabs() :
		!strcmp(exporter, "vfio-pci") ? of_vfio() : !strcmp(exporter, "nvidia") ? of_nvidia() :
		!strcmp(exporter, "uverbs") ? of_nic() : of_drm();

	MUST(fd >= 0);
	return fd;
}

static void connect_to(struct ibv_qp *qp, uint32_t other, const union ibv_gid *gid)
{
	struct ibv_qp_attr init = { .qp_state = IBV_QPS_INIT, .port_num = 1,
		.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ };
	struct ibv_qp_attr rtr = { .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = other,
		.max_dest_rd_atomic = 1, .min_rnr_timer = 12,
		.ah_attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = *gid, .hop_limit = 64 } } };
	struct ibv_qp_attr rts = { .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1 };

	MUST(!ibv_modify_qp(qp, &init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	MUST(!ibv_modify_qp(qp, &rtr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
					      IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
	MUST(!ibv_modify_qp(qp, &rts, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
					      IBV_QP_MAX_QP_RD_ATOMIC));
}

static void transfer(struct ibv_qp *qp, struct ibv_cq *cq, struct ibv_mr *local, char *at, uint32_t rkey, enum ibv_wr_opcode op)
{
	struct ibv_sge sge = { .addr = (uintptr_t)at, .length = LENGTH, .lkey = local->lkey };
	struct ibv_send_wr *bad, wr = { .sg_list = &sge, .num_sge = 1, .opcode = op, .send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = { .rkey = rkey } };
	struct ibv_wc wc;
	int found;

	MUST(!ibv_post_send(qp, &wr, &bad));
	while ((found = ibv_poll_cq(cq, 1, &wc)) == 0)
		;
	if (found < 0 || wc.status != IBV_WC_SUCCESS)
		errx(1, "by_c: a transfer ended with %s", found < 0 ? "no completion" : ibv_wc_status_str(wc.status));
}

static void answered(void)
{
	char line[8];

	fflush(stdout);
	MUST(fgets(line, sizeof(line), stdin));
}

static void import(struct ibv_context *nic)
{
	int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ, fd = new_buffer();
	struct ibv_pd *pd = ibv_alloc_pd(nic);
	struct ibv_mr *mr = ibv_reg_dmabuf_mr(pd, 0, SIZE, 0, fd, access), *again, *local;
	struct ibv_cq *cq;
	struct ibv_qp *qp[2];
	union ibv_gid gid;
	static char bytes[2 * LENGTH];

	if (!mr) {
		printf("%s errno %d\n", ibv_get_device_name(nic->device), errno);
		answered();
		close(fd);
		return;
	}
	cq = ibv_create_cq(nic, 16, NULL, NULL, 0);
	local = ibv_reg_mr(pd, bytes, sizeof(bytes), IBV_ACCESS_LOCAL_WRITE);
	/* Writes by one region and reads by another. */
	again = ibv_reg_dmabuf_mr(pd, 0, SIZE, 0, fd, access);
	MUST(cq && local && again && !ibv_query_gid(nic, 1, 0, &gid));
	for (int i = 0; i < 2; i++) {
		struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
			.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 } };

		qp[i] = ibv_create_qp(pd, &init);
		MUST(qp[i]);
	}
	for (int i = 0; i < 2; i++)
		connect_to(qp[i], qp[!i]->qp_num, &gid);
	for (unsigned i = 0; i < LENGTH; i++)
		bytes[i] = (char)(i * 37 ^ 0xa5);
	memset(bytes + LENGTH, 0, LENGTH);
	transfer(qp[0], cq, local, bytes, mr->rkey, IBV_WR_RDMA_WRITE);
	transfer(qp[0], cq, local, bytes + LENGTH, again->rkey, IBV_WR_RDMA_READ);
	if (memcmp(bytes, bytes + LENGTH, LENGTH))
		errx(1, "by_c: the write succeeded, but the bytes are not there");
	printf("%s ok %d\n", ibv_get_device_name(nic->device), fd);
	answered();
	for (int i = 0; i < 2; i++)
		ibv_destroy_qp(qp[i]);
	MUST(!ibv_dereg_mr(again) && !ibv_dereg_mr(mr) && !ibv_dereg_mr(local));
	close(fd);
}

int main(int argc, char **argv)
{
	int count;
	struct ibv_device **list = ibv_get_device_list(&count);
	struct ibv_context *nics[16];

	if (argc != 2 || !list || count > 16)
		errx(1, "by_c EXPORTER, with at most 16 NICs");
	/* Longer than anything here takes. */
	alarm(60);
	exporter = argv[1];
	node = getenv("PEERDMA_DRM_NODE");
	printf("pid %d\n", (int)getpid());
	for (int i = 0; i < count; i++) {
		nics[i] = ibv_open_device(list[i]);
		MUST(nics[i]);
		if (!strcmp(ibv_get_device_name(list[i]), "memory"))
			memory_nic = nics[i];
	}
	for (int i = 0; i < count; i++)
		if (nics[i] != memory_nic)
			import(nics[i]);
	for (int i = 0; i < 2; i++) {
		int fd = new_buffer();

		printf("static %d\n", fd);
		answered();
		close(fd);
	}
	return 0;
}
