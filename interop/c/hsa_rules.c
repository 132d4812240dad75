/* The results of HSA's runtime: a status for each mistake, signals, locked memory, queries of
 * addresses, and callbacks. */
#include "hsa_api.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

static const hsa_agent_t nobody;
static const hsa_signal_t no_signal;

static hsa_status_t count_one(hsa_region_t region, void *data)
{
	(void)region;
	++*(int *)data;
	return HSA_STATUS_SUCCESS;
}

static hsa_status_t has_enough(hsa_agent_t agent, void *data)
{
	(void)agent;
	++*(int *)data;
	return HSA_STATUS_ERROR_EXCEPTION;
}

static void beginning(void)
{
	const char *text;
	bool is_there;
	uint32_t kind;
	int count = 0;

	/* Before init, only texts of errors are available. */
	HSA(hsa_status_string(HSA_STATUS_ERROR_INVALID_ALLOCATION, &text));
	CHECK(!strncmp(text, "HSA_STATUS_ERROR_INVALID_ALLOCATION: ", 37));
	HSA_IS(hsa_status_string(77, &text), HSA_STATUS_ERROR_INVALID_ARGUMENT);
	HSA_IS(hsa_iterate_agents(hsa_take_agent, &count), HSA_STATUS_ERROR_NOT_INITIALIZED);
	HSA_IS(hsa_shut_down(), HSA_STATUS_ERROR_NOT_INITIALIZED);
	hsa_start();
	HSA(hsa_init());
	HSA(hsa_shut_down());
	HSA_IS(hsa_iterate_agents(NULL, NULL), HSA_STATUS_ERROR_INVALID_ARGUMENT);
	count = 0;
	HSA_IS(hsa_iterate_agents(has_enough, &count), HSA_STATUS_ERROR_EXCEPTION);
	CHECK(count == 1);
	HSA(hsa_system_get_info(0x204, &is_there)); /* HSA_AMD_SYSTEM_INFO_DMABUF_SUPPORTED */
	CHECK(is_there);
	HSA_IS(hsa_system_get_info(0x999, &is_there), HSA_STATUS_ERROR_INVALID_ARGUMENT);
	HSA_IS(hsa_system_get_info(0x204, NULL), HSA_STATUS_ERROR_INVALID_ARGUMENT);
	HSA_IS(hsa_agent_get_info(nobody, HSA_AGENT_INFO_DEVICE, &kind), HSA_STATUS_ERROR_INVALID_AGENT);
	HSA_IS(hsa_agent_get_info(gpus[0], 0x9999, &kind), HSA_STATUS_ERROR_INVALID_ARGUMENT);
	HSA_IS(hsa_agent_get_info(gpus[0], HSA_AGENT_INFO_DEVICE, NULL), HSA_STATUS_ERROR_INVALID_ARGUMENT);
	count = 0;
	HSA(hsa_agent_iterate_regions(gpus[0], count_one, &count));
	CHECK(count == 5);
}

/* The address of a GPU is that in sysfs. */
static void place(void)
{
	char name[64], path[96], vendor[16] = "";
	uint32_t where, domain;
	FILE *file;

	for (int i = 0; i < 2; i++) {
		HSA(hsa_agent_get_info(gpus[i], (hsa_agent_info_t)HSA_AMD_AGENT_INFO_PRODUCT_NAME, name));
		CHECK(!strcmp(name, i ? "peerdma amdgpu1" : "peerdma amdgpu0"));
		HSA(hsa_agent_get_info(gpus[i], (hsa_agent_info_t)HSA_AMD_AGENT_INFO_BDFID, &where));
		HSA(hsa_agent_get_info(gpus[i], (hsa_agent_info_t)HSA_AMD_AGENT_INFO_DOMAIN, &domain));
		snprintf(path, sizeof(path), "/sys/bus/pci/devices/%04x:%02x:%02x.%x/vendor", domain, where >> 8, where >> 3 & 31, where & 7);
		file = fopen(path, "r");
		CHECK(file && fgets(vendor, sizeof(vendor), file) && !fclose(file));
		CHECK(!strcmp(vendor, "0x1002\n"));
	}
}

static void memory(void)
{
	hsa_amd_memory_pool_t none = { 0 }, group = { vram[0].handle + 64 };
	hsa_amd_pointer_info_t about = { .size = sizeof(about) };
	hsa_amd_memory_pool_access_t access;
	hsa_agent_t *who = NULL;
	uint32_t count = 0, flags = 0, word = 0x01020304, words[4] = { 0 };
	char *a, *b, *h, from[64], to[64];
	size_t left;
	hsa_region_t region = { vram[0].handle };
	void *at;

	HSA_IS(hsa_amd_memory_pool_allocate(vram[0], 0, 0, &at), HSA_STATUS_ERROR_INVALID_ARGUMENT);
	HSA_IS(hsa_amd_memory_pool_allocate(vram[0], MIB, 0, NULL), HSA_STATUS_ERROR_INVALID_ARGUMENT);
	HSA_IS(hsa_amd_memory_pool_allocate(none, MIB, 0, &at), HSA_STATUS_ERROR_INVALID_MEMORY_POOL);
	HSA_IS(hsa_memory_allocate((hsa_region_t){ 1 }, MIB, &at), HSA_STATUS_ERROR_INVALID_REGION);
	HSA_IS(hsa_amd_memory_pool_allocate(group, 64, 0, &at), HSA_STATUS_ERROR_INVALID_ALLOCATION);
	HSA(hsa_amd_memory_pool_get_info(vram[0], HSA_AMD_MEMORY_POOL_INFO_ALLOC_MAX_SIZE, &left));
	HSA_IS(hsa_amd_memory_pool_allocate(vram[0], left + 1, 0, &at), HSA_STATUS_ERROR_INVALID_ALLOCATION);
	a = hsa_device_memory(MIB);
	HSA(hsa_memory_allocate(region, 100, (void **)&b));
	HSA(hsa_amd_memory_pool_allocate(host, 5000, 0, (void **)&h));
	/* Queries of addresses. */
	HSA(hsa_amd_pointer_info(a + 5000, &about, NULL, NULL, NULL));
	CHECK(about.type == HSA_EXT_POINTER_TYPE_HSA && about.agentBaseAddress == a && about.sizeInBytes == MIB);
	CHECK(about.agentOwner.handle == gpus[0].handle && about.global_flags == 4 && !about.hostBaseAddress);
	HSA(hsa_amd_pointer_info_set_userdata(a, from));
	HSA_IS(hsa_amd_pointer_info_set_userdata(a + 1, from), HSA_STATUS_ERROR_INVALID_ARGUMENT);
	HSA(hsa_amd_pointer_info(a, &about, malloc, &count, &who));
	CHECK(count == 1 && who[0].handle == gpus[0].handle && about.userData == from);
	free(who);
	HSA(hsa_amd_pointer_info(h + 4999, &about, NULL, NULL, NULL));
	CHECK(about.type == HSA_EXT_POINTER_TYPE_HSA && about.hostBaseAddress == h && about.sizeInBytes == 5000);
	CHECK(about.agentOwner.handle == cpu.handle);
	HSA(hsa_amd_pointer_info(&about, &about, NULL, NULL, NULL));
	CHECK(about.type == HSA_EXT_POINTER_TYPE_UNKNOWN && !about.agentBaseAddress && !about.agentOwner.handle);
	HSA_IS(hsa_amd_pointer_info(NULL, &about, NULL, NULL, NULL), HSA_STATUS_ERROR_INVALID_ARGUMENT);
	HSA_IS(hsa_amd_pointer_info(a, NULL, NULL, NULL, NULL), HSA_STATUS_ERROR_INVALID_ARGUMENT);
	about.size = 0;
	HSA_IS(hsa_amd_pointer_info(a, &about, NULL, NULL, NULL), HSA_STATUS_ERROR_INVALID_ARGUMENT);
	/* Programs of an older header have a smaller structure. */
	memset(&about, 0x5a, sizeof(about));
	about.size = 24;
	HSA(hsa_amd_pointer_info(a, &about, NULL, NULL, NULL));
	CHECK(about.size == 24 && about.type == HSA_EXT_POINTER_TYPE_HSA && about.sizeInBytes == 0x5a5a5a5a5a5a5a5a);
	/* Access by agents. */
	HSA_IS(hsa_amd_agents_allow_access(0, gpus, NULL, a), HSA_STATUS_ERROR_INVALID_ARGUMENT);
	HSA_IS(hsa_amd_agents_allow_access(2, NULL, NULL, a), HSA_STATUS_ERROR_INVALID_ARGUMENT);
	HSA_IS(hsa_amd_agents_allow_access(2, gpus, &flags, a), HSA_STATUS_ERROR_INVALID_ARGUMENT);
	HSA_IS(hsa_amd_agents_allow_access(2, gpus, NULL, NULL), HSA_STATUS_ERROR_INVALID_ARGUMENT);
	HSA_IS(hsa_amd_agents_allow_access(2, gpus, NULL, a + 1), HSA_STATUS_ERROR_INVALID_ALLOCATION);
	HSA_IS(hsa_amd_agents_allow_access(1, &nobody, NULL, a), HSA_STATUS_ERROR_INVALID_AGENT);
	HSA_IS(hsa_amd_agents_allow_access(1, &cpu, NULL, a), HSA_STATUS_ERROR_INVALID_AGENT);
	HSA(hsa_amd_agents_allow_access(2, gpus, NULL, a));
	HSA(hsa_amd_agents_allow_access(2, gpus, NULL, h));
	about.size = sizeof(about);
	HSA(hsa_amd_pointer_info(a, &about, malloc, &count, &who));
	CHECK(count == 2 && who[1].handle == gpus[1].handle);
	free(who);
	HSA(hsa_amd_agent_memory_pool_get_info(gpus[1], vram[0], HSA_AMD_AGENT_MEMORY_POOL_INFO_ACCESS, &access));
	CHECK(access == HSA_AMD_MEMORY_POOL_ACCESS_DISALLOWED_BY_DEFAULT);
	HSA(hsa_amd_agent_memory_pool_get_info(cpu, vram[0], HSA_AMD_AGENT_MEMORY_POOL_INFO_ACCESS, &access));
	CHECK(access == HSA_AMD_MEMORY_POOL_ACCESS_NEVER_ALLOWED);
	/* Copies and fills. */
	for (int i = 0; i < 64; i++)
		from[i] = (char)(i * 7 + 1);
	HSA(hsa_memory_copy(a + MIB - 64, from, 64));
	HSA(hsa_memory_copy(b + 1, a + MIB - 64, 64));
	HSA(hsa_memory_copy(to, b + 1, 64));
	CHECK(!memcmp(from, to, 64));
	HSA(hsa_memory_copy(h, h + 64, 0));
	HSA_IS(hsa_memory_copy(NULL, from, 64), HSA_STATUS_ERROR_INVALID_ARGUMENT);
	HSA_IS(hsa_memory_copy(a + MIB - 63, from, 64), HSA_STATUS_ERROR_INVALID_ARGUMENT);
	HSA_IS(hsa_memory_copy(a - 1, from, 64), HSA_STATUS_ERROR_INVALID_ARGUMENT);
	HSA(hsa_amd_memory_fill(a + 8, word, 3));
	HSA(hsa_memory_copy(words, a + 4, 16));
	CHECK(words[1] == word && words[3] == word && words[0] != word);
	HSA(hsa_amd_memory_fill(a, word, 0));
	HSA_IS(hsa_amd_memory_fill(a + 2, word, 3), HSA_STATUS_ERROR_INVALID_ARGUMENT);
	HSA_IS(hsa_amd_memory_fill(NULL, word, 3), HSA_STATUS_ERROR_INVALID_ARGUMENT);
	HSA_IS(hsa_amd_memory_fill(a, word, SIZE_MAX / 2), HSA_STATUS_ERROR_INVALID_ARGUMENT);
	HSA(hsa_memory_free(NULL));
	HSA_IS(hsa_memory_free(a + 1), HSA_STATUS_ERROR_INVALID_ALLOCATION);
	HSA_IS(hsa_memory_free(from), HSA_STATUS_ERROR_INVALID_ALLOCATION);
	HSA(hsa_memory_free(a));
	HSA_IS(hsa_amd_memory_pool_free(a), HSA_STATUS_ERROR_INVALID_ALLOCATION);
	HSA(hsa_amd_memory_pool_free(b));
	HSA(hsa_amd_memory_pool_free(h));
}

static void locked(void)
{
	hsa_amd_pointer_info_t about = { .size = sizeof(about) };
	char *pages = mmap(NULL, 3 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	char *a = hsa_device_memory(4096);
	void *at;

	CHECK(pages != MAP_FAILED && munmap(pages + 4096, 4096) == 0);
	HSA(hsa_amd_memory_lock(pages + 100, 200, NULL, 0, &at));
	CHECK(at == pages + 100);
	HSA(hsa_amd_pointer_info(pages + 299, &about, NULL, NULL, NULL));
	CHECK(about.type == HSA_EXT_POINTER_TYPE_LOCKED && about.hostBaseAddress == pages + 100 && about.sizeInBytes == 200);
	CHECK(about.agentOwner.handle == cpu.handle);
	HSA(hsa_amd_memory_lock(pages + 100, 200, gpus, 2, &at));
	HSA(hsa_amd_memory_unlock(pages + 100));
	HSA(hsa_amd_pointer_info(pages + 100, &about, NULL, NULL, NULL));
	CHECK(about.type == HSA_EXT_POINTER_TYPE_LOCKED);
	HSA(hsa_amd_memory_unlock(pages + 100));
	HSA(hsa_amd_pointer_info(pages + 100, &about, NULL, NULL, NULL));
	CHECK(about.type == HSA_EXT_POINTER_TYPE_UNKNOWN);
	HSA_IS(hsa_amd_memory_lock(pages, 3 * 4096, NULL, 0, &at), HSA_STATUS_ERROR);
	CHECK(!at);
	HSA_IS(hsa_amd_memory_lock(a, 4096, NULL, 0, &at), HSA_STATUS_ERROR);
	HSA_IS(hsa_amd_memory_lock(pages, 0, NULL, 0, &at), HSA_STATUS_ERROR_INVALID_ARGUMENT);
	HSA_IS(hsa_amd_memory_lock(NULL, 64, NULL, 0, &at), HSA_STATUS_ERROR_INVALID_ARGUMENT);
	HSA_IS(hsa_amd_memory_lock(pages, 64, NULL, 0, NULL), HSA_STATUS_ERROR_INVALID_ARGUMENT);
	HSA_IS(hsa_amd_memory_lock(pages, 64, gpus, 0, &at), HSA_STATUS_ERROR_INVALID_ARGUMENT);
	HSA_IS(hsa_amd_memory_lock(pages, 64, NULL, 1, &at), HSA_STATUS_ERROR_INVALID_ARGUMENT);
	HSA_IS(hsa_amd_memory_lock(pages, 64, (hsa_agent_t *)&nobody, 1, &at), HSA_STATUS_ERROR_INVALID_AGENT);
	HSA(hsa_memory_free(a));
	munmap(pages, 3 * 4096);
}

static bool take_value(hsa_signal_value_t value, void *data)
{
	__atomic_store_n((long *)data, value + 1000, __ATOMIC_SEQ_CST);
	return false;
}

static void signals(void)
{
	hsa_signal_t first, second, done, gone, both[2];
	hsa_signal_condition_t conditions[2] = { HSA_SIGNAL_CONDITION_EQ, HSA_SIGNAL_CONDITION_GTE };
	hsa_signal_value_t values[2] = { 9, 7 }, found;
	volatile hsa_signal_value_t *word;
	char *a = hsa_device_memory(4096), from[16] = "fifteen letters", to[16];
	long taken = 0;

	HSA(hsa_signal_create(1, 0, NULL, &first));
	HSA(hsa_signal_create(2, 2, gpus, &second));
	HSA(hsa_signal_create(1, 0, NULL, &done));
	HSA_IS(hsa_signal_create(1, 1, NULL, &gone), HSA_STATUS_ERROR_INVALID_ARGUMENT);
	HSA_IS(hsa_signal_create(1, 0, NULL, NULL), HSA_STATUS_ERROR_INVALID_ARGUMENT);
	HSA_IS(hsa_signal_create(1, 1, &nobody, &gone), HSA_STATUS_ERROR_INVALID_AGENT);
	HSA(hsa_signal_create(1, 0, NULL, &gone));
	HSA(hsa_signal_destroy(gone));
	HSA_IS(hsa_signal_destroy(gone), HSA_STATUS_ERROR_INVALID_SIGNAL);
	HSA_IS(hsa_signal_destroy(no_signal), HSA_STATUS_ERROR_INVALID_ARGUMENT);
	/* Values. */
	hsa_signal_add_scacq_screl(second, 5);
	CHECK(hsa_signal_exchange_relaxed(second, 12) == 7 && hsa_signal_cas_scacquire(second, 12, 10) == 12);
	hsa_signal_subtract_relaxed(second, 1);
	hsa_signal_or_release(second, 6);
	hsa_signal_and_relaxed(second, 13);
	hsa_signal_xor_relaxed(second, 1);
	HSA(hsa_amd_signal_value_pointer(second, &word));
	CHECK(hsa_signal_load_scacquire(second) == 12 && *word == 12);
	*word = 8;
	CHECK(hsa_signal_wait_scacquire(second, HSA_SIGNAL_CONDITION_LT, 9, UINT64_MAX, HSA_WAIT_STATE_ACTIVE) == 8);
	CHECK(hsa_signal_wait_relaxed(second, HSA_SIGNAL_CONDITION_EQ, 9, 1000000, HSA_WAIT_STATE_BLOCKED) == 8);
	both[0] = first;
	both[1] = second;
	CHECK(hsa_amd_signal_wait_any(2, both, conditions, values, UINT64_MAX, HSA_WAIT_STATE_ACTIVE, &found) == 1 && found == 8);
	CHECK(hsa_amd_signal_wait_any(1, both, conditions, values, 1000000, HSA_WAIT_STATE_ACTIVE, &found) == UINT32_MAX);
	/* A copy that waits for two signals decrements a third. */
	HSA(hsa_amd_memory_async_copy(a, gpus[0], from, cpu, 16, 2, both, done));
	HSA(hsa_amd_signal_async_handler(done, HSA_SIGNAL_CONDITION_LT, 1, take_value, &taken));
	hsa_signal_store_screlease(first, 0);
	CHECK(hsa_signal_wait_scacquire(done, HSA_SIGNAL_CONDITION_LT, 1, 1000000, HSA_WAIT_STATE_BLOCKED) == 1);
	hsa_signal_store_screlease(second, 0);
	CHECK(hsa_signal_wait_scacquire(done, HSA_SIGNAL_CONDITION_LT, 1, UINT64_MAX, HSA_WAIT_STATE_BLOCKED) == 0);
	HSA(hsa_memory_copy(to, a, 16));
	CHECK(!memcmp(from, to, 16));
	while (!__atomic_load_n(&taken, __ATOMIC_SEQ_CST))
		usleep(100);
	CHECK(taken == 1000);
	/* The failure of such a copy becomes the signal's value. */
	hsa_signal_store_relaxed(first, 1);
	hsa_signal_store_relaxed(done, 1);
	HSA(hsa_amd_memory_async_copy(a + 4090, gpus[0], from, cpu, 16, 1, &first, done));
	hsa_signal_store_relaxed(first, 0);
	CHECK(hsa_signal_wait_scacquire(done, HSA_SIGNAL_CONDITION_LT, 1, UINT64_MAX, HSA_WAIT_STATE_BLOCKED) < 0);
	HSA_IS(hsa_amd_memory_async_copy(NULL, gpus[0], from, cpu, 16, 0, NULL, done), HSA_STATUS_ERROR_INVALID_ARGUMENT);
	HSA_IS(hsa_amd_memory_async_copy(a, gpus[0], from, cpu, 16, 1, NULL, done), HSA_STATUS_ERROR_INVALID_ARGUMENT);
	HSA_IS(hsa_amd_memory_async_copy(a, nobody, from, cpu, 16, 0, NULL, done), HSA_STATUS_ERROR_INVALID_AGENT);
	HSA_IS(hsa_amd_memory_async_copy(a, gpus[0], from, cpu, 16, 0, NULL, gone), HSA_STATUS_ERROR_INVALID_SIGNAL);
	HSA_IS(hsa_amd_memory_async_copy(a, gpus[0], from, cpu, 16, 1, &gone, done), HSA_STATUS_ERROR_INVALID_SIGNAL);
	HSA_IS(hsa_amd_memory_async_copy(a + 4090, gpus[0], from, cpu, 16, 0, NULL, done), HSA_STATUS_ERROR_INVALID_ARGUMENT);
	HSA(hsa_memory_free(a));
	for (int i = 0; i < 2; i++)
		HSA(hsa_signal_destroy(both[i]));
	HSA(hsa_signal_destroy(done));
}

static void exports(void)
{
	struct rlimit limit = { 0, 4096 };
	char *a = hsa_device_memory(MIB), *h;
	uint64_t offset;
	int fd, other;

	HSA(hsa_amd_memory_pool_allocate(host, 4096, 0, (void **)&h));
	HSA(export_dmabuf(a + 5000, 100, &fd, &offset));
	CHECK(fd >= 0 && offset == 5000);
	/* Each is a new descriptor, which the program must close. */
	HSA(export_dmabuf_v2(a, MIB, &other, &offset, 1));
	CHECK(other != fd && offset == 0 && lseek(other, 0, SEEK_END) == (off_t)MIB);
	HSA(close_dmabuf(fd));
	HSA_IS(close_dmabuf(fd), HSA_STATUS_ERROR_RESOURCE_FREE);
	HSA(close_dmabuf(other));
	HSA_IS(export_dmabuf(NULL, 100, &fd, &offset), HSA_STATUS_ERROR_INVALID_ARGUMENT);
	HSA_IS(export_dmabuf(a, 0, &fd, &offset), HSA_STATUS_ERROR_INVALID_ARGUMENT);
	HSA_IS(export_dmabuf(a, 100, NULL, &offset), HSA_STATUS_ERROR_INVALID_ARGUMENT);
	HSA_IS(export_dmabuf(a, 100, &fd, NULL), HSA_STATUS_ERROR_INVALID_ARGUMENT);
	HSA_IS(export_dmabuf_v2(a, 100, &fd, &offset, 2), HSA_STATUS_ERROR_INVALID_ARGUMENT);
	HSA_IS(export_dmabuf(a + 1, MIB, &fd, &offset), HSA_STATUS_ERROR_INVALID_ALLOCATION);
	HSA_IS(export_dmabuf(&fd, 4, &fd, &offset), HSA_STATUS_ERROR_INVALID_ALLOCATION);
	HSA_IS(export_dmabuf(h, 4096, &fd, &offset), HSA_STATUS_ERROR_INVALID_AGENT);
	CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
	HSA_IS(export_dmabuf(a, 100, &fd, &offset), HSA_STATUS_ERROR_OUT_OF_RESOURCES);
	limit.rlim_cur = 1024;
	CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
	HSA(hsa_memory_free(h));
	HSA(hsa_memory_free(a));
	HSA_IS(export_dmabuf(a, 100, &fd, &offset), HSA_STATUS_ERROR_INVALID_ALLOCATION);
}

static void take_freed(void *at, void *data)
{
	hsa_amd_pointer_info_t about = { .size = sizeof(about) };

	/* It is freed already; and this callback may allocate. */
	HSA(hsa_amd_pointer_info(at, &about, NULL, NULL, NULL));
	CHECK(about.type == HSA_EXT_POINTER_TYPE_UNKNOWN);
	HSA(hsa_memory_free(hsa_device_memory(64)));
	*(char **)data = at;
}

static void callbacks(void)
{
	char *a = hsa_device_memory(4096), *freed = NULL, *other = NULL;

	HSA(hsa_amd_register_deallocation_callback(a + 100, take_freed, &freed));
	HSA(hsa_amd_register_deallocation_callback(a, take_freed, &other));
	HSA_IS(hsa_amd_register_deallocation_callback(&freed, take_freed, &freed), HSA_STATUS_ERROR_INVALID_ALLOCATION);
	HSA_IS(hsa_amd_register_deallocation_callback(a, NULL, &freed), HSA_STATUS_ERROR_INVALID_ARGUMENT);
	HSA(hsa_amd_deregister_deallocation_callback(a, take_freed));
	HSA_IS(hsa_amd_deregister_deallocation_callback(a, take_freed), HSA_STATUS_ERROR_INVALID_ARGUMENT);
	HSA(hsa_memory_free(a));
	CHECK(freed == a + 100 && !other);
}

static void nothing_computes(void)
{
	hsa_queue_t *queue;
	hsa_executable_t executable;

	for (int i = 0; i < 2; i++) {
		HSA_IS(hsa_queue_create(gpus[0], 64, HSA_QUEUE_TYPE_MULTI, NULL, NULL, 0, 0, &queue),
		       HSA_STATUS_ERROR_INVALID_QUEUE_CREATION);
		HSA_IS(hsa_executable_create_alt(HSA_PROFILE_FULL, HSA_DEFAULT_FLOAT_ROUNDING_MODE_NEAR, NULL, &executable),
		       HSA_STATUS_ERROR);
	}
	HSA_IS(hsa_queue_create(gpus[0], 63, HSA_QUEUE_TYPE_MULTI, NULL, NULL, 0, 0, &queue), HSA_STATUS_ERROR_INVALID_ARGUMENT);
}

static void children(void)
{
	char *a = hsa_device_memory(MIB), byte;
	int status;
	pid_t child = fork();

	if (child == 0) {
		HSA_IS(hsa_init(), HSA_STATUS_ERROR_NOT_INITIALIZED);
		HSA_IS(hsa_memory_free(a), HSA_STATUS_ERROR_NOT_INITIALIZED);
		_exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	/* The CPU follows a device pointer. */
	child = fork();
	if (child == 0) {
		byte = *(volatile char *)a;
		_exit(byte);
	}
	CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
	HSA(hsa_memory_free(a));
}

static void end(void)
{
	hsa_signal_t signal;
	char *a = hsa_device_memory(MIB);

	HSA(hsa_signal_create(0, 0, NULL, &signal));
	HSA(hsa_shut_down());
	HSA_IS(hsa_memory_free(a), HSA_STATUS_ERROR_NOT_INITIALIZED);
	/* After a second init, nothing of the first remains. */
	hsa_start();
	HSA_IS(hsa_memory_free(a), HSA_STATUS_ERROR_INVALID_ALLOCATION);
	HSA_IS(hsa_signal_destroy(signal), HSA_STATUS_ERROR_INVALID_SIGNAL);
	HSA(hsa_shut_down());
}

int main(void)
{
	beginning();
	place();
	memory();
	locked();
	signals();
	exports();
	callbacks();
	nothing_computes();
	children();
	end();
	printf("ok\n");
	return 0;
}
