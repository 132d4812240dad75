/* The results of libfabric for registrations of GPU memory, a line for each: the request, and the
 * error number or 0.
 *
 *   fi_mr PROVIDER [DESCRIPTORS]
 *
 * With a limit of descriptors: how many registrations it takes to use them up, since libfabric
 * keeps one for each.
 */
#define _GNU_SOURCE
#include "cuda_api.h"

#include <rdma/fabric.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/uio.h>
#include <unistd.h>

#define SIZE (1u << 20)
#define PAGE 4096u
#define ACCESS (FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE)

static struct fid_domain *domain;

static void say(const char *what, int ret)
{
	printf("%s: %d\n", what, -ret);
}

/* Registers and deregisters. */
static int regattr(const struct fi_mr_attr *attr, uint64_t flags)
{
	struct fid_mr *mr;
	int ret = fi_mr_regattr(domain, attr, flags, &mr);

	if (!ret)
		CHECK(!fi_close(&mr->fid));
	return ret;
}

static int by_address(enum fi_hmem_iface iface, void *address, uint64_t flags)
{
	struct iovec iov = { address, SIZE };
	struct fi_mr_attr attr = { .mr_iov = &iov, .iov_count = 1, .access = ACCESS, .iface = iface };

	return regattr(&attr, flags);
}

static int by_dmabuf(int fd, uint64_t offset, size_t len, void *base)
{
	struct fi_mr_dmabuf dmabuf = { .fd = fd, .offset = offset, .len = len, .base_addr = base };
	struct fi_mr_attr attr = { .dmabuf = &dmabuf, .iov_count = 1, .access = ACCESS, .iface = FI_HMEM_CUDA };

	return regattr(&attr, FI_MR_DMABUF);
}

/* Opens a domain of the provider. Without FI_HMEM, the memory attributes have no effect. */
static int open_domain(const char *provider, uint64_t caps)
{
	struct fi_info *hints = fi_allocinfo(), *info;
	struct fid_fabric *fabric;
	int ret;

	CHECK(hints);
	hints->caps = FI_MSG | FI_RMA | caps;
	hints->mode = ~0ull;
	hints->ep_attr->type = strcmp(provider, "verbs") ? FI_EP_RDM : FI_EP_MSG;
	hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_HMEM | FI_MR_ENDPOINT;
	hints->fabric_attr->prov_name = strdup(provider);
	ret = fi_getinfo(FI_VERSION(2, 0), NULL, NULL, 0, hints, &info);
	if (ret)
		return ret;
	CHECK(!fi_fabric(info->fabric_attr, &fabric, NULL));
	CHECK(!fi_domain(fabric, info, &domain, NULL));
	return 0;
}

static void options(const char *provider)
{
	struct fi_info *hints = fi_allocinfo(), *info;
	int values[] = { FI_HMEM_P2P_ENABLED, FI_HMEM_P2P_REQUIRED, FI_HMEM_P2P_DISABLED };
	const char *names[] = { "option enabled", "option required", "option disabled" };
	struct fid_fabric *fabric;
	struct fid_domain *of_ep;
	struct fid_ep *ep;

	hints->caps = FI_MSG | FI_HMEM;
	hints->mode = ~0ull;
	hints->ep_attr->type = strcmp(provider, "verbs") ? FI_EP_RDM : FI_EP_MSG;
	hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_HMEM | FI_MR_ENDPOINT;
	hints->fabric_attr->prov_name = strdup(provider);
	CHECK(!fi_getinfo(FI_VERSION(2, 0), NULL, NULL, 0, hints, &info));
	CHECK(!fi_fabric(info->fabric_attr, &fabric, NULL));
	CHECK(!fi_domain(fabric, info, &of_ep, NULL));
	CHECK(!fi_endpoint(of_ep, info, &ep, NULL));
	for (unsigned i = 0; i < 3; i++)
		say(names[i], fi_setopt(&ep->fid, FI_OPT_ENDPOINT, FI_OPT_FI_HMEM_P2P, &values[i], sizeof(values[i])));
}

/* Each of another page, since a cache finds what is registered already. */
static void until_none_left(cu_ptr memory, unsigned limit)
{
	struct rlimit descriptors = { limit, limit };
	int ret = 0;

	CHECK(limit < SIZE / PAGE && !setrlimit(RLIMIT_NOFILE, &descriptors));
	for (unsigned page = 0; page < SIZE / PAGE && !ret; page++) {
		struct iovec iov = { (char *)memory + page * PAGE, PAGE };
		struct fi_mr_attr attr = { .mr_iov = &iov, .iov_count = 1, .access = ACCESS, .iface = FI_HMEM_CUDA };

		ret = regattr(&attr, 0);
	}
	say("regattr with no descriptor left", ret);
}

int main(int argc, char **argv)
{
	const char *provider = argc > 1 ? argv[1] : "verbs";
	struct iovec iov;
	struct fid_mr *mr;
	cu_ptr memory;
	void *device;
	int fd, file, ret;

	cuda_start();
	CU(cuMemAlloc_v2(&memory, SIZE));
	device = (void *)memory;
	iov = (struct iovec){ device, SIZE };

	ret = open_domain(provider, FI_HMEM);
	say("FI_HMEM", ret);
	if (ret)
		return 0;
	if (argc > 2) {
		until_none_left(memory, atoi(argv[2]));
		return 0;
	}
	/* First, because the cache of regions returns what it has, whatever the interface. */
	say("regattr as system memory", by_address(FI_HMEM_SYSTEM, device, 0));
	say("regattr", by_address(FI_HMEM_CUDA, device, 0));
	say("regattr of an interface that is not there", by_address(FI_HMEM_ROCR, device, 0));
	say("regattr of memory that nobody has", by_address(FI_HMEM_CUDA, (char *)device + (8ull << 30), 0));

	CU(cuMemGetHandleForAddressRange(&fd, memory, SIZE, 1, 0));
	say("dma-buf", by_dmabuf(fd, 0, SIZE, device));
	say("dma-buf, part", by_dmabuf(fd, PAGE, SIZE - PAGE, device));
	say("dma-buf, no base", by_dmabuf(fd, 0, SIZE, NULL));
	say("dma-buf, too long", by_dmabuf(fd, 0, SIZE + PAGE, device));
	say("dma-buf, behind its end", by_dmabuf(fd, SIZE, PAGE, device));
	say("dma-buf, base within a page", by_dmabuf(fd, 0, SIZE, (char *)device + 8));
	say("dma-buf -1", by_dmabuf(-1, 0, SIZE, device));
	file = memfd_create("no dma-buf", MFD_CLOEXEC);
	CHECK(file >= 0 && !ftruncate(file, SIZE));
	say("dma-buf of a file", by_dmabuf(file, 0, SIZE, device));
	say("reg with the flag", fi_mr_reg(domain, device, SIZE, ACCESS, 0, 0, FI_MR_DMABUF, &mr, NULL));
	say("regv with the flag", fi_mr_regv(domain, &iov, 1, ACCESS, 0, 0, FI_MR_DMABUF, &mr, NULL));

	CU(cuMemFree_v2(memory));
	say("dma-buf of memory that was freed", by_dmabuf(fd, 0, SIZE, device));
	say("regattr of memory that was freed", by_address(FI_HMEM_CUDA, device, 0));
	options(provider);
	return 0;
}
