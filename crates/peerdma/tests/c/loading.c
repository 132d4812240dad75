/* Loads the library by its two names and asks for symbols at exact versions, as programs that use dlvsym do.
 * Prints one line per question. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <string.h>

static int copies(struct dl_phdr_info *info, size_t size, void *count)
{
	(void)size;
	const char *name = strrchr(info->dlpi_name, '/');

	name = name ? name + 1 : info->dlpi_name;
	if (!strncmp(name, "libibverbs", 10) || !strncmp(name, "librdmacm", 9) || !strncmp(name, "libpeerdma", 10))
		++*(int *)count;
	return 0;
}

static void ask(void *library, const char *name, const char *version)
{
	printf("%s@%s %s\n", name, version, dlvsym(library, name, version) ? "yes" : "no");
}

int main(int argc, char **argv)
{
	void *verbs = dlopen("libibverbs.so.1", RTLD_NOW);
	void *cm = dlopen("librdmacm.so.1", RTLD_NOW);
	int count = 0;

	if (!verbs || !cm) {
		printf("%s\n", dlerror());
		return 1;
	}
	dl_iterate_phdr(copies, &count);
	printf("one handle %s\n", verbs == cm ? "yes" : "no");
	printf("copies %d\n", count);
	ask(verbs, "ibv_get_device_list", "IBVERBS_1.1");
	ask(verbs, "ibv_get_device_list", "IBVERBS_1.0");
	ask(verbs, "ibv_create_comp_channel", "IBVERBS_1.0");
	ask(verbs, "ibv_reg_mr_iova2", "IBVERBS_1.8");
	ask(verbs, "ibv_query_ece", "IBVERBS_1.10");
	ask(verbs, "ibv_reg_dmabuf_mr", "IBVERBS_1.12");
	ask(verbs, "ibv_query_port_speed", "IBVERBS_1.16");
	ask(verbs, "execute_ioctl", "IBVERBS_PRIVATE_34");
	ask(verbs, "execute_ioctl", "IBVERBS_PRIVATE_65");
	ask(verbs, "verbs_register_driver_57", "IBVERBS_PRIVATE_57");
	ask(cm, "rdma_connect", "RDMACM_1.0");
	ask(cm, "rdma_establish", "RDMACM_1.2");
	/* -z nodelete: the library outlives its handles. */
	dlclose(cm);
	dlclose(verbs);
	count = 0;
	dl_iterate_phdr(copies, &count);
	printf("copies after dlclose %d\n", count);
	for (int i = 1; i < argc; i++)
		printf("%s %s\n", argv[i], dlopen(argv[i], RTLD_NOW) ? "loads" : dlerror());
	return 0;
}
