/* An accelerator of habanalabs: allocates its memory, maps it at device addresses, exports it, and
 * registers it with every NIC.
 *
 * habana traffic: each NIC reaches it. habana unreached: none does. habana rules: what is refused,
 * and lifetimes. The node is the one that PEERDMA_DRM_NODE names. */
#include "exported.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>

/* As in habanalabs_accel.h, which no libdrm has. */
#define HL_INFO _IOWR('d', 0x40, struct info)
#define HL_CS _IOWR('d', 0x42, struct mem)
#define HL_MEMORY _IOWR('d', 0x44, struct mem)

enum { ALLOC, FREE, MAP, UNMAP, MAP_BLOCK, EXPORT, TS_ALLOC };
enum { CONTIGUOUS = 1, SHARED = 2, USERPTR = 4, FORCE_HINT = 8 };
enum { HW_IP = 0, DRAM_USAGE = 2, HW_IDLE = 3, STATUS = 4, OPEN_STATS = 18, PAGE_SIZES = 26, GET_EVENTS = 30 };

struct info {
	uint64_t place;
	uint32_t size, op, detail, pad;
};
struct mem {
	uint64_t word[3];
	uint32_t op, flags, ctx_id, num;
};
struct hw_ip {
	uint64_t sram_base, dram_base, dram_size;
	uint32_t sram_size, events, device_id, module_id, decoders;
	uint16_t first_interrupt, server_type;
	uint32_t cpld, pll[4];
	uint8_t tpc, dram_enabled, security, mme;
	uint8_t cpucp_version[128], card_name[16];
	uint64_t tpc_ext, dram_page_size;
	uint32_t edma;
	uint16_t interrupts;
	uint8_t reserved_a[2];
	uint64_t reserved_b, default_page_size, reserved_c[2];
	uint32_t reserved_d;
	uint8_t reserved_e, revision;
	uint16_t tpc_interrupt;
	uint32_t rotators, reserved_f;
	uint64_t interrupt_reg, reserved_dram_size;
};
_Static_assert(sizeof(struct hw_ip) == 304, "as in the header");

#define PAGE (2ull << 20)

static char node[64], control[96];

static int open_node(const char *path)
{
	int fd = open(path, O_RDWR | O_CLOEXEC);

	if (fd < 0)
		err(1, "%s", path);
	return fd;
}

static int ask(int fd, uint32_t op, void *place, uint32_t size)
{
	struct info info = { .place = (uintptr_t)place, .size = size, .op = op };

	return ioctl(fd, HL_INFO, &info);
}

static int memory(int fd, uint32_t op, uint32_t flags, uint64_t a, uint64_t b, uint64_t c, uint64_t *out)
{
	struct mem mem = { .word = { a, b, c }, .op = op, .flags = flags };
	int result = ioctl(fd, HL_MEMORY, &mem);

	if (out)
		*out = mem.word[0];
	return result;
}

static uint64_t alloc(int fd, uint64_t size)
{
	uint64_t handle;

	CHECK(memory(fd, ALLOC, CONTIGUOUS | SHARED, size, 0, 0, &handle) == 0 && handle != 0);
	return handle;
}

static uint64_t map(int fd, uint64_t handle)
{
	uint64_t addr;

	CHECK(memory(fd, MAP, 0, 0, handle, 0, &addr) == 0 && addr != 0);
	return addr;
}

static int export(int fd, uint64_t addr, uint64_t size, uint64_t offset)
{
	struct mem mem = { .word = { addr, size, offset }, .op = EXPORT, .flags = O_RDWR | O_CLOEXEC };
	int result = ioctl(fd, HL_MEMORY, &mem), dmabuf;

	memcpy(&dmabuf, mem.word, sizeof(dmabuf));
	if (result == 0)
		return dmabuf;
	CHECK(result == -1 && dmabuf == -EBADF);
	return -1;
}

static int export_some(int *fd)
{
	uint64_t addr;
	int dmabuf;

	*fd = open_node(node);
	addr = map(*fd, alloc(*fd, PAGE + 1));
	dmabuf = export(*fd, addr, PAGE, PAGE);
	CHECK(dmabuf >= 0 && fcntl(dmabuf, F_GETFD) == FD_CLOEXEC);
	CHECK(lseek(dmabuf, 0, SEEK_END) == (off_t)PAGE);
	/* The driver has no mmap for this memory. */
	CHECK(mmap(NULL, PAGE, PROT_READ, MAP_SHARED, dmabuf, 0) == MAP_FAILED && errno == EINVAL);
	return dmabuf;
}

static void traffic(void)
{
	int fd, dmabuf;

	open_nics();
	dmabuf = export_some(&fd);
	every_nic_writes(dmabuf, PAGE);
	/* The memory outlives the descriptor of the device. */
	CHECK(close(fd) == 0);
	every_nic_writes(dmabuf, PAGE);
	CHECK(close(dmabuf) == 0);
	close_nics();
}

static void unreached(void)
{
	int fd, dmabuf;

	open_nics();
	dmabuf = export_some(&fd);
	every_nic_is_refused(dmabuf, PAGE, EPERM);
	CHECK(close(dmabuf) == 0 && close(fd) == 0);
	close_nics();
}

static void what_it_says(int fd)
{
	int ctrl = open_node(control), other = open_node(control);
	struct hw_ip ip, same;
	struct stat by_path, by_fd;
	uint64_t usage[2], sizes, events = 7;
	uint32_t status[2] = { 9 }, idle[10] = { 0 };
	struct info padded = { .place = (uintptr_t)status, .size = sizeof(status), .op = STATUS, .pad = 1 };

	CHECK(ask(fd, HW_IP, &ip, sizeof(ip)) == 0 && ask(ctrl, HW_IP, &same, sizeof(same)) == 0);
	CHECK(!memcmp(&ip, &same, sizeof(ip)) && ip.dram_page_size == PAGE && ip.dram_enabled == 1);
	CHECK(ip.dram_size >= 8 * PAGE && ip.default_page_size == PAGE);
	CHECK(ask(fd, DRAM_USAGE, usage, sizeof(usage)) == 0 && usage[0] == ip.dram_size && usage[1] == 0);
	CHECK(ask(fd, STATUS, status, sizeof(status)) == 0 && status[0] == 0);
	CHECK(ask(fd, HW_IDLE, idle, sizeof(idle)) == 0 && idle[0] == 1);
	CHECK(ask(fd, PAGE_SIZES, &sizes, sizeof(sizes)) == 0 && sizes & PAGE);
	CHECK(ask(fd, GET_EVENTS, &events, sizeof(events)) == 0 && events == 0);
	/* The driver writes no more than there is room for. */
	memset(&same, 0x5a, sizeof(same));
	CHECK(ask(fd, HW_IP, &same, 16) == 0 && same.dram_base == ip.dram_base && same.dram_size == 0x5a5a5a5a5a5a5a5a);
	CHECK(REFUSED(ask(fd, HW_IP, NULL, sizeof(ip)), EINVAL) && REFUSED(ask(fd, HW_IP, &ip, 0), EINVAL));
	CHECK(REFUSED(ask(fd, GET_EVENTS, &events, 4), EINVAL) && REFUSED(ask(fd, 999, &events, 8), EINVAL));
	CHECK(REFUSED(ioctl(fd, HL_INFO, &padded), EINVAL) && REFUSED(ioctl(fd, HL_INFO, NULL), EFAULT));
	/* The control device only answers queries. */
	CHECK(REFUSED(memory(ctrl, ALLOC, 0, PAGE, 0, 0, NULL), ENOTTY));
	CHECK(REFUSED(ask(ctrl, GET_EVENTS, &events, 8), EOPNOTSUPP));
	CHECK(stat(node, &by_path) == 0 && fstat(fd, &by_fd) == 0 && access(control, R_OK | W_OK) == 0);
	CHECK(S_ISCHR(by_path.st_mode) && by_path.st_rdev == by_fd.st_rdev && major(by_fd.st_rdev) == 261);
	CHECK(close(ctrl) == 0 && close(other) == 0);
}

static void what_sysfs_says(void)
{
	unsigned unit = (unsigned)atoi(node + strlen("/dev/accel/accel")), vendor = 0;
	char path[128], dev[32] = "", expected[32];
	FILE *file;

	snprintf(path, sizeof(path), "/sys/class/accel/accel%u/dev", unit);
	file = fopen(path, "r");
	CHECK(file && fgets(dev, sizeof(dev), file));
	fclose(file);
	snprintf(expected, sizeof(expected), "261:%u\n", unit);
	CHECK(!strcmp(dev, expected));
	snprintf(path, sizeof(path), "/sys/class/accel/accel%u/device/vendor", unit);
	file = fopen(path, "r");
	CHECK(file && fscanf(file, "%x", &vendor) == 1 && vendor == 0x1da3);
	fclose(file);
}

static void memory_rules(int fd)
{
	uint64_t handle = alloc(fd, 1), addr = map(fd, handle), second, host, usage[2], out;
	unsigned char *mine = mmap(NULL, 3 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	CHECK(ask(fd, DRAM_USAGE, usage, sizeof(usage)) == 0 && usage[1] == PAGE);
	CHECK(REFUSED(memory(fd, ALLOC, 0, 0, 0, 0, NULL), EINVAL));
	CHECK(REFUSED(memory(fd, ALLOC, 0, UINT64_MAX, 0, 0, NULL), EINVAL));
	CHECK(REFUSED(memory(fd, ALLOC, 0, PAGE, 12345, 0, NULL), EINVAL));
	CHECK(REFUSED(memory(fd, ALLOC, 0, 1ull << 40, 0, 0, NULL), ENOMEM));
	CHECK(REFUSED(memory(fd, FREE, 0, 77, 0, 0, NULL), EINVAL));
	CHECK(REFUSED(memory(fd, FREE, 0, handle, 0, 0, NULL), EINVAL));
	CHECK(REFUSED(memory(fd, MAP, 0, 0, 77, 0, &out), EINVAL) && out == 0);
	CHECK(REFUSED(memory(fd, UNMAP, 0, addr + PAGE, 0, 0, NULL), EINVAL));
	CHECK(REFUSED(memory(fd, MAP_BLOCK, 0, 0, 0, 0, NULL), EINVAL) && REFUSED(memory(fd, 9, 0, 0, 0, 0, NULL), EINVAL));
	/* One allocation at two addresses; one of them asked for. */
	CHECK(memory(fd, MAP, FORCE_HINT, addr + 8 * PAGE, handle, 0, &second) == 0 && second == addr + 8 * PAGE);
	CHECK(REFUSED(memory(fd, MAP, FORCE_HINT, addr, handle, 0, NULL), ENOMEM));
	CHECK(memory(fd, MAP, 0, addr, handle, 0, &out) == 0 && out != addr && memory(fd, UNMAP, 0, out, 0, 0, NULL) == 0);
	CHECK(memory(fd, UNMAP, 0, second, 0, 0, NULL) == 0 && REFUSED(memory(fd, UNMAP, 0, second, 0, 0, NULL), EINVAL));
	/* Host memory also gets addresses, but is not exported. */
	CHECK(memory(fd, MAP, USERPTR, (uintptr_t)mine + 5, 0, 100, &host) == 0 && host % 4096 == 5);
	CHECK(export(fd, host, 4096, 0) == -1 && errno == EINVAL);
	CHECK(munmap(mine + 4096, 4096) == 0);
	CHECK(REFUSED(memory(fd, MAP, USERPTR, (uintptr_t)mine, 0, 3 * 4096, NULL), EFAULT));
	CHECK(REFUSED(memory(fd, MAP, USERPTR, (uintptr_t)mine, 0, 0, NULL), EINVAL));
	CHECK(REFUSED(memory(fd, MAP, USERPTR, UINT64_MAX - 10, 0, 100, NULL), EINVAL));
	CHECK(memory(fd, UNMAP, 0, host, 0, 0, NULL) == 0);
	/* Exports. */
	CHECK(export(fd, addr + 4096, 4096, 0) == -1 && errno == EINVAL);
	CHECK(export(fd, addr, 100, 0) == -1 && errno == EINVAL);
	CHECK(export(fd, addr, 4096, 100) == -1 && errno == EINVAL);
	CHECK(export(fd, addr, 4096, PAGE) == -1 && errno == EINVAL);
	CHECK(export(fd, addr, PAGE + 4096, 0) == -1 && errno == EINVAL);
	CHECK(export(fd, addr, UINT64_MAX - 4095, 8192) == -1 && errno == EINVAL);
	int dmabuf = export(fd, addr, 8192, 4096);
	CHECK(dmabuf >= 0 && lseek(dmabuf, 0, SEEK_END) == 8192);
	CHECK(REFUSED(memory(fd, UNMAP, 0, addr, 0, 0, NULL), EINVAL));
	CHECK(close(dmabuf) == 0 && memory(fd, UNMAP, 0, addr, 0, 0, NULL) == 0);
	CHECK(memory(fd, FREE, 0, handle, 0, 0, NULL) == 0 && REFUSED(memory(fd, FREE, 0, handle, 0, 0, NULL), EINVAL));
	CHECK(ask(fd, DRAM_USAGE, usage, sizeof(usage)) == 0 && usage[1] == 0);
	CHECK(munmap(mine, 3 * 4096) == 0);
}

/* One program at a time has the device, until it has closed it and every dma-buf of its memory. */
static void one_at_a_time(void)
{
	struct mem job = { 0 };
	int fd = open_node(node), dmabuf, status;
	uint64_t addr = map(fd, alloc(fd, PAGE));
	pid_t child;

	CHECK(REFUSED(open(node, O_RDWR), EBUSY));
	child = fork();
	if (child == 0) {
		/* Inherited descriptors are of no use. */
		CHECK(REFUSED(ask(fd, STATUS, &status, sizeof(status)), ENODEV));
		_exit(REFUSED(open(node, O_RDWR), EBUSY) ? 0 : 1);
	}
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	CHECK(REFUSED(ioctl(fd, HL_CS, &job), EINVAL) && REFUSED(ioctl(fd, TIOCGWINSZ, &job), ENOTTY));
	CHECK(mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0) == MAP_FAILED && errno == EINVAL);
	dmabuf = export(fd, addr, PAGE, 0);
	CHECK(dmabuf >= 0 && close(fd) == 0 && REFUSED(open(node, O_RDWR), EBUSY));
	CHECK(close(dmabuf) == 0);
	fd = open_node(node);
	CHECK(close(fd) == 0);
}

int main(int argc, char **argv)
{
	const char *named = getenv("PEERDMA_DRM_NODE");

	CHECK(argc == 2 && named && !strncmp(named, "/dev/accel/accel", 16));
	snprintf(node, sizeof(node), "%.*s", (int)strcspn(named, ","), named);
	snprintf(control, sizeof(control), "/dev/accel/accel_controlD%s", node + 16);
	if (!strcmp(argv[1], "traffic")) {
		traffic();
	} else if (!strcmp(argv[1], "unreached")) {
		unreached();
	} else {
		int fd = open_node(node);

		what_it_says(fd);
		what_sysfs_says();
		memory_rules(fd);
		CHECK(close(fd) == 0);
		one_at_a_time();
	}
	printf("ok\n");
	return 0;
}
