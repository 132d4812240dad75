/* A VFIO device: binds it, exports its memory, registers that with every NIC that can lose it, and
 * takes it away.
 *
 * vfio_device traffic: each NIC reaches it. vfio_device unreached: none has a path. vfio_device
 * pinned: NICs that cannot lose it are not served. vfio_device taken: what disabled memory, a reset
 * and a close do to a region; vfio_device rules. The node is the one that PEERDMA_DRM_NODE
 * names. */
#include "exported.h"

#include <fcntl.h>
#include <linux/pci_regs.h>
#include <linux/vfio.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>

/* Newer than the headers of some systems. */
struct bind {
	uint32_t argsz, flags;
	int32_t iommufd;
	uint32_t devid;
};
struct attach {
	uint32_t argsz, flags, pt_id;
};
struct range {
	uint64_t offset, length;
};
struct get_dma_buf {
	uint32_t argsz, flags;
	uint32_t region, open_flags, buf_flags, nr_ranges;
	struct range range[3];
};
struct ioas {
	uint32_t size, flags, id;
};
#define BIND _IO(';', 118)
#define ATTACH _IO(';', 119)
#define DETACH _IO(';', 120)
#define DESTROY _IO(';', 0x80)
#define IOAS_ALLOC _IO(';', 0x81)
#define IOAS_MAP _IO(';', 0x85)
#define DMA_BUF 11

#define SIZE (1ull << 20)

static char node[64];
static int iommu = -1;
static uint64_t bar, config;

static int open_device(void)
{
	int fd = open(node, O_RDWR | O_CLOEXEC);
	struct bind bind = { .argsz = sizeof(bind) };
	struct vfio_region_info info = { .argsz = sizeof(info), .index = VFIO_PCI_BAR0_REGION_INDEX };
	struct ioas ioas = { .size = sizeof(ioas) };
	struct attach attach = { .argsz = sizeof(attach) };

	if (iommu < 0)
		iommu = open("/dev/iommu", O_RDWR | O_CLOEXEC);
	if (fd < 0 || iommu < 0)
		err(1, "%s, /dev/iommu", node);
	bind.iommufd = iommu;
	CHECK(ioctl(fd, BIND, &bind) == 0 && bind.devid != 0);
	CHECK(ioctl(iommu, IOAS_ALLOC, &ioas) == 0);
	attach.pt_id = ioas.id;
	CHECK(ioctl(fd, ATTACH, &attach) == 0);
	CHECK(ioctl(fd, VFIO_DEVICE_GET_REGION_INFO, &info) == 0 && info.size >= 4 * SIZE);
	bar = info.offset;
	info.index = VFIO_PCI_CONFIG_REGION_INDEX;
	CHECK(ioctl(fd, VFIO_DEVICE_GET_REGION_INFO, &info) == 0);
	config = info.offset;
	return fd;
}

static int get(int fd, struct get_dma_buf *get)
{
	get->argsz = sizeof(*get);
	get->flags = VFIO_DEVICE_FEATURE_GET | DMA_BUF;
	get->open_flags = O_RDWR | O_CLOEXEC;
	return ioctl(fd, VFIO_DEVICE_FEATURE, get);
}

static int export(int fd, uint64_t offset, uint64_t length)
{
	struct get_dma_buf wanted = { .nr_ranges = 1, .range = { { offset, length } } };

	return get(fd, &wanted);
}

static void set_command(int fd, uint16_t command)
{
	CHECK(pwrite(fd, &command, sizeof(command), (off_t)config + 4) == sizeof(command));
}

static int bar_has(int fd, uint64_t offset, unsigned seed)
{
	static unsigned char found[LOOP_SIZE];

	CHECK(pread(fd, found, sizeof(found), (off_t)(bar + offset)) == sizeof(found));
	for (unsigned i = 0; i < LOOP_SIZE; i++)
		if (found[i] != pattern(seed, i))
			return 0;
	return 1;
}

static void traffic(void)
{
	struct get_dma_buf two = { .nr_ranges = 2, .range = { { 2 * SIZE, 4096 }, { 3 * SIZE, SIZE } } };
	int fd = open_device(), dmabuf = export(fd, SIZE, SIZE);
	struct ibv_mr *mr;

	open_nics();
	CHECK(dmabuf >= 0 && lseek(dmabuf, 0, SEEK_END) == (off_t)SIZE && fcntl(dmabuf, F_GETFD) == FD_CLOEXEC);
	CHECK(mmap(NULL, SIZE, PROT_READ, MAP_SHARED, dmabuf, 0) == MAP_FAILED && errno == EINVAL);
	every_nic_writes(dmabuf, SIZE);
	/* The last NIC's bytes are visible in the BAR. */
	CHECK(bar_has(fd, SIZE + (uint64_t)nic_count * 4096, (unsigned)nic_count + 2));
	CHECK(close(dmabuf) == 0);
	/* Ranges that are not adjacent in the BAR are adjacent in the buffer. */
	dmabuf = get(fd, &two);
	CHECK(dmabuf >= 0 && lseek(dmabuf, 0, SEEK_END) == (off_t)(SIZE + 4096));
	mr = reg_exported(&nics[0], dmabuf, SIZE + 4096);
	CHECK(mr && loop_write_to(&nics[0], mr, 4096, 9) == IBV_WC_SUCCESS && bar_has(fd, 3 * SIZE, 9));
	CHECK(ibv_dereg_mr(mr) == 0 && close(dmabuf) == 0 && close(fd) == 0);
	close_nics();
}

static void refused_with(int number)
{
	int fd = open_device(), dmabuf = export(fd, 0, SIZE);

	open_nics();
	CHECK(dmabuf >= 0);
	every_nic_is_refused(dmabuf, SIZE, number);
	CHECK(close(dmabuf) == 0 && close(fd) == 0);
	close_nics();
}

/* The NIC of this class. */
static struct loop *nic(const char *name)
{
	for (int i = 0; i < nic_count; i++)
		if (!strcmp(ibv_get_device_name(nics[i].ctx->device), name))
			return &nics[i];
	errx(1, "there is no NIC %s", name);
}

/* After an error the queue pairs are connected again; regions stay. */
static void connect_again(struct loop *l)
{
	struct ibv_qp_attr reset = { .qp_state = IBV_QPS_RESET };
	union ibv_gid gid;
	struct ibv_wc wc;

	CHECK(ibv_query_gid(l->ctx, 1, 0, &gid) == 0);
	for (int i = 0; i < 2; i++)
		CHECK(ibv_modify_qp(l->qp[i], &reset, IBV_QP_STATE) == 0);
	while (ibv_poll_cq(l->cq, 1, &wc) > 0)
		;
	for (int i = 0; i < 2; i++)
		CHECK(loop_connect(l->qp[i], l->qp[!i]->qp_num, &gid, 14) == 0);
}

static int is_refused(struct loop *l, struct ibv_mr *mr)
{
	int status = loop_write_to(l, mr, 0, 77);

	connect_again(l);
	return status > 0;
}

static void taken(void)
{
	int fd = open_device(), dmabuf = export(fd, 0, SIZE), born;
	struct get_dma_buf two = { .nr_ranges = 2, .range = { { 2 * SIZE, 4096 }, { 3 * SIZE, 4096 } } };
	struct loop *dynamic, *revocable;
	struct ibv_mr *moves, *dies, *late;
	unsigned char byte;
	uint16_t command;

	open_nics();
	dynamic = nic("dynamic");
	revocable = nic("revocable");
	moves = reg_exported(dynamic, dmabuf, SIZE);
	dies = reg_exported(revocable, dmabuf, SIZE);
	CHECK(moves && dies);
	CHECK(loop_write_to(dynamic, moves, 0, 1) == IBV_WC_SUCCESS && loop_finds(revocable, dies, 0, 1));

	/* Memory is disabled: nobody reaches it, and no new importer is served. A buffer exported now
	 * starts revoked. */
	set_command(fd, 0);
	CHECK(is_refused(dynamic, moves) && is_refused(revocable, dies));
	errno = 0;
	CHECK(!reg_exported(dynamic, dmabuf, SIZE) && errno == ENODEV);
	born = export(fd, SIZE, SIZE);
	CHECK(born >= 0 && !reg_exported(dynamic, born, SIZE) && errno == ENODEV);
	int both = get(fd, &two);
	CHECK(both >= 0 && !reg_exported(dynamic, both, 8192) && errno == ENODEV);
	CHECK(REFUSED(pread(fd, &byte, 1, (off_t)bar), EIO));
	CHECK(REFUSED(pwrite(fd, &byte, 1, (off_t)bar), EIO));
	/* Writing the present value changes nothing. */
	set_command(fd, 0);

	/* It is back, with its contents: importers that follow moves have it again; those whose access was
	 * revoked do not. */
	set_command(fd, PCI_COMMAND_MEMORY);
	CHECK(pread(fd, &command, 2, (off_t)config + 4) == 2 && command == PCI_COMMAND_MEMORY);
	CHECK(bar_has(fd, 0, 1) && loop_finds(dynamic, moves, 0, 1) && is_refused(revocable, dies));
	CHECK(ibv_dereg_mr(dies) == 0);
	dies = reg_exported(revocable, dmabuf, SIZE);
	CHECK(dies && loop_finds(revocable, dies, 0, 1));
	late = reg_exported(revocable, born, SIZE);
	CHECK(late && loop_write_to(revocable, late, 0, 3) == IBV_WC_SUCCESS && bar_has(fd, SIZE, 3));
	CHECK(ibv_dereg_mr(late) == 0);
	late = reg_exported(revocable, both, 8192);
	CHECK(late && ibv_dereg_mr(late) == 0 && close(both) == 0 && close(born) == 0);

	/* A reset takes it away for a moment, and its contents for good. */
	CHECK(ioctl(fd, VFIO_DEVICE_RESET) == 0);
	CHECK(!bar_has(fd, 0, 1) && is_refused(revocable, dies));
	CHECK(loop_write_to(dynamic, moves, 0, 4) == IBV_WC_SUCCESS && bar_has(fd, 0, 4));
	CHECK(ibv_dereg_mr(dies) == 0);
	dies = reg_exported(revocable, dmabuf, SIZE);
	CHECK(dies && loop_finds(revocable, dies, 0, 4));

	/* A reset while it is disabled leaves it so. */
	set_command(fd, 0);
	CHECK(ioctl(fd, VFIO_DEVICE_RESET) == 0 && is_refused(dynamic, moves));
	set_command(fd, PCI_COMMAND_MEMORY);
	CHECK(!bar_has(fd, 0, 4));
	CHECK(loop_write_to(dynamic, moves, 0, 5) == IBV_WC_SUCCESS && bar_has(fd, 0, 5));

	/* Once the device is closed nothing remains, and another program may have it. */
	CHECK(close(fd) == 0);
	CHECK(is_refused(dynamic, moves) && is_refused(revocable, dies));
	errno = 0;
	CHECK(!reg_exported(dynamic, dmabuf, SIZE) && errno == ENODEV);
	fd = open_device();
	CHECK(!bar_has(fd, 0, 5) && is_refused(dynamic, moves));
	CHECK(ibv_dereg_mr(moves) == 0 && ibv_dereg_mr(dies) == 0 && close(dmabuf) == 0 && close(fd) == 0);
	close_nics();
}

static int feature(int fd, uint32_t flags, struct get_dma_buf wanted)
{
	wanted.argsz = sizeof(wanted);
	wanted.flags = flags;
	return ioctl(fd, VFIO_DEVICE_FEATURE, &wanted);
}

static void export_rules(int fd, uint64_t size)
{
	struct get_dma_buf one = { .nr_ranges = 1, .range = { { 0, 4096 } } }, bad;
	struct vfio_device_feature short_one = { .argsz = 8, .flags = VFIO_DEVICE_FEATURE_GET | DMA_BUF };

	CHECK(feature(fd, VFIO_DEVICE_FEATURE_PROBE | VFIO_DEVICE_FEATURE_GET | DMA_BUF, one) == 0);
	CHECK(REFUSED(feature(fd, VFIO_DEVICE_FEATURE_SET | DMA_BUF, one), EINVAL));
	CHECK(REFUSED(feature(fd, VFIO_DEVICE_FEATURE_GET | VFIO_DEVICE_FEATURE_SET | DMA_BUF, one), EINVAL));
	CHECK(REFUSED(feature(fd, DMA_BUF, one), EINVAL) && REFUSED(feature(fd, 1u << 30 | DMA_BUF, one), EINVAL));
	CHECK(REFUSED(feature(fd, VFIO_DEVICE_FEATURE_GET | 900, one), ENOTTY));
	CHECK(REFUSED(ioctl(fd, VFIO_DEVICE_FEATURE, &short_one), EINVAL));
	short_one.argsz = 4;
	CHECK(REFUSED(ioctl(fd, VFIO_DEVICE_FEATURE, &short_one), EINVAL));
	CHECK(REFUSED(ioctl(fd, VFIO_DEVICE_FEATURE, NULL), EFAULT));
	bad = one, bad.nr_ranges = 0;
	CHECK(REFUSED(get(fd, &bad), EINVAL));
	bad = one, bad.nr_ranges = UINT32_MAX;
	CHECK(REFUSED(get(fd, &bad), ENOMEM));
	bad = one, bad.buf_flags = 1;
	CHECK(REFUSED(get(fd, &bad), EINVAL));
	bad = one, bad.region = VFIO_PCI_CONFIG_REGION_INDEX;
	CHECK(REFUSED(get(fd, &bad), ENODEV));
	bad = one, bad.region = VFIO_PCI_BAR2_REGION_INDEX;
	CHECK(REFUSED(get(fd, &bad), EINVAL));
	CHECK(REFUSED(export(fd, 0, 0), EINVAL) && REFUSED(export(fd, 100, 4096), EINVAL));
	CHECK(REFUSED(export(fd, 0, 100), EINVAL) && REFUSED(export(fd, size, 4096), EINVAL));
	CHECK(REFUSED(export(fd, 0, size + 4096), EINVAL));
	CHECK(REFUSED(export(fd, UINT64_MAX - 4095, 4096), EOVERFLOW));
	bad = (struct get_dma_buf){ .nr_ranges = 2, .range = { { 0, 1ull << 63 }, { 0, 1ull << 63 } } };
	CHECK(REFUSED(get(fd, &bad), EINVAL));
}

static void region_rules(int fd, uint64_t size)
{
	struct vfio_device_info device = { .argsz = sizeof(device) };
	struct vfio_region_info info = { .argsz = sizeof(info) };
	struct vfio_irq_info irq = { .argsz = sizeof(irq) };
	uint64_t word = 0x0123456789abcdef, found = 0, all = UINT64_MAX;
	unsigned char edge[64];

	CHECK(ioctl(fd, VFIO_DEVICE_GET_INFO, &device) == 0 && device.num_regions == VFIO_PCI_NUM_REGIONS);
	CHECK(device.flags == (VFIO_DEVICE_FLAGS_PCI | VFIO_DEVICE_FLAGS_RESET));
	info.index = VFIO_PCI_BAR2_REGION_INDEX;
	CHECK(ioctl(fd, VFIO_DEVICE_GET_REGION_INFO, &info) == 0 && info.size == 0 && info.flags == 0);
	info.index = 99;
	CHECK(REFUSED(ioctl(fd, VFIO_DEVICE_GET_REGION_INFO, &info), EINVAL));
	info.argsz = 8;
	CHECK(REFUSED(ioctl(fd, VFIO_DEVICE_GET_REGION_INFO, &info), EINVAL));
	CHECK(ioctl(fd, VFIO_DEVICE_GET_IRQ_INFO, &irq) == 0 && irq.count == 0);
	irq.index = 99;
	CHECK(REFUSED(ioctl(fd, VFIO_DEVICE_GET_IRQ_INFO, &irq), EINVAL));
	CHECK(REFUSED(ioctl(fd, _IO(';', 199)), ENOTTY) && REFUSED(ioctl(fd, _IO('d', 9), &irq), ENOTTY));
	/* Memory, to its last byte. */
	CHECK(pwrite(fd, &word, 8, (off_t)(bar + size - 8)) == 8 && pread(fd, &found, 8, (off_t)(bar + size - 8)) == 8);
	CHECK(found == word && pread(fd, edge, 64, (off_t)(bar + size - 8)) == 8);
	CHECK(REFUSED(pread(fd, edge, 1, (off_t)(bar + size)), EINVAL));
	/* Registers: read-only bits stay, and a BAR reports its size. */
	CHECK(pread(fd, &found, 8, (off_t)config) == 8 && (found & 0xffff) == 0x1b36);
	CHECK(pwrite(fd, &all, 4, (off_t)config) == 4 && pread(fd, &all, 8, (off_t)config) == 8 && all == found);
	all = UINT64_MAX;
	CHECK(pwrite(fd, &all, 8, (off_t)config + PCI_BASE_ADDRESS_0) == 8);
	CHECK(pread(fd, &found, 8, (off_t)config + PCI_BASE_ADDRESS_0) == 8 && ~(found & ~0xfull) + 1 == size);
	CHECK(REFUSED(pread(fd, edge, 64, (off_t)config + 250), EFAULT));
	CHECK(REFUSED(pread(fd, edge, 1, (off_t)(1ull << 41)), EINVAL) && REFUSED(pread(fd, edge, 1, -1), EINVAL));
	CHECK(mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, (off_t)bar) == MAP_FAILED && errno == EINVAL);
}

static void bind_rules(void)
{
	int fd = open(node, O_RDWR | O_CLOEXEC), other, null = open("/dev/null", O_RDWR), status;
	struct bind bind = { .argsz = sizeof(bind), .iommufd = -1 };
	struct ioas ioas = { .size = sizeof(ioas) };
	struct attach attach = { .argsz = sizeof(attach), .pt_id = 99 };
	uint32_t ended[3] = { 8, 99, 1 };
	struct stat by_path, by_fd;
	pid_t child;

	iommu = open("/dev/iommu", O_RDWR | O_CLOEXEC);
	CHECK(fd >= 0 && iommu >= 0 && null >= 0);
	CHECK(stat(node, &by_path) == 0 && fstat(fd, &by_fd) == 0 && S_ISCHR(by_path.st_mode));
	CHECK(by_path.st_rdev == by_fd.st_rdev && access("/dev/iommu", R_OK | W_OK) == 0);
	/* Nothing works before it is bound. */
	CHECK(REFUSED(ioctl(fd, VFIO_DEVICE_RESET), EINVAL) && REFUSED(export(fd, 0, 4096), EINVAL));
	CHECK(REFUSED(pread(fd, &bind, 4, 0), EINVAL) && REFUSED(ioctl(fd, BIND, NULL), EFAULT));
	CHECK(REFUSED(ioctl(fd, BIND, &bind), EINVAL));
	bind.iommufd = 999;
	CHECK(REFUSED(ioctl(fd, BIND, &bind), EBADF));
	bind.iommufd = null;
	CHECK(REFUSED(ioctl(fd, BIND, &bind), EBADFD));
	bind.iommufd = iommu;
	bind.flags = 1;
	CHECK(REFUSED(ioctl(fd, BIND, &bind), EINVAL));
	bind.flags = 0;
	bind.argsz = 8;
	CHECK(REFUSED(ioctl(fd, BIND, &bind), EINVAL));
	bind.argsz = sizeof(bind);
	CHECK(ioctl(fd, BIND, &bind) == 0 && REFUSED(ioctl(fd, BIND, &bind), EINVAL));
	/* One program has it. */
	other = open(node, O_RDWR | O_CLOEXEC);
	CHECK(other >= 0 && REFUSED(ioctl(other, BIND, &bind), EINVAL) && close(other) == 0);
	child = fork();
	if (child == 0) {
		fd = open(node, O_RDWR);
		bind.iommufd = open("/dev/iommu", O_RDWR);
		_exit(REFUSED(ioctl(fd, BIND, &bind), EINVAL) ? 0 : 1);
	}
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	/* Address spaces. */
	CHECK(REFUSED(ioctl(fd, ATTACH, &attach), ENOENT) && ioctl(iommu, IOAS_ALLOC, &ioas) == 0);
	attach.pt_id = ioas.id;
	attach.flags = 1;
	CHECK(REFUSED(ioctl(fd, ATTACH, &attach), EOPNOTSUPP));
	attach.flags = 0;
	CHECK(ioctl(fd, ATTACH, &attach) == 0 && REFUSED(ioctl(iommu, DESTROY, ended), ENOENT));
	ended[1] = ioas.id;
	CHECK(REFUSED(ioctl(iommu, DESTROY, ended), EBUSY) && ioctl(fd, DETACH, &attach) == 0);
	ended[0] = 12;
	CHECK(REFUSED(ioctl(iommu, DESTROY, ended), E2BIG));
	ended[0] = 4;
	CHECK(REFUSED(ioctl(iommu, DESTROY, ended), EINVAL));
	ended[0] = 8;
	CHECK(ioctl(iommu, DESTROY, ended) == 0 && REFUSED(ioctl(iommu, IOAS_MAP, &ioas), EOPNOTSUPP));
	ioas.flags = 1;
	CHECK(REFUSED(ioctl(iommu, IOAS_ALLOC, &ioas), EOPNOTSUPP) && REFUSED(ioctl(iommu, _IO(';', 1)), ENOTTY));
	CHECK(close(fd) == 0 && close(null) == 0);
}

static void rules(void)
{
	struct vfio_region_info info = { .argsz = sizeof(info), .index = VFIO_PCI_BAR0_REGION_INDEX };
	char path[128];
	int fd;

	bind_rules();
	fd = open_device();
	CHECK(ioctl(fd, VFIO_DEVICE_GET_REGION_INFO, &info) == 0);
	export_rules(fd, info.size);
	region_rules(fd, info.size);
	CHECK(close(fd) == 0);
	snprintf(path, sizeof(path), "/sys/class/vfio-dev/%s/device/vendor", node + strlen("/dev/vfio/devices/"));
	CHECK(access(path, R_OK) == 0);
}

int main(int argc, char **argv)
{
	const char *named = getenv("PEERDMA_DRM_NODE");

	CHECK(argc == 2 && named && !strncmp(named, "/dev/vfio/devices/vfio", 22));
	snprintf(node, sizeof(node), "%.*s", (int)strcspn(named, ","), named);
	if (!strcmp(argv[1], "traffic"))
		traffic();
	else if (!strcmp(argv[1], "unreached"))
		refused_with(EINVAL);
	else if (!strcmp(argv[1], "pinned"))
		refused_with(EOPNOTSUPP);
	else if (!strcmp(argv[1], "taken"))
		taken();
	else
		rules();
	printf("ok\n");
	return 0;
}
