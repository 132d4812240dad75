/* Loads libibverbs.so.1 as NCCL does: dlopen, then dlvsym with the exact version of each function. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>

static const struct {
	const char *name, *version;
} symbols[] = {
	{ "ibv_get_device_list", "IBVERBS_1.1" },
	{ "ibv_free_device_list", "IBVERBS_1.1" },
	{ "ibv_get_device_name", "IBVERBS_1.1" },
	{ "ibv_open_device", "IBVERBS_1.1" },
	{ "ibv_close_device", "IBVERBS_1.1" },
	{ "ibv_get_async_event", "IBVERBS_1.1" },
	{ "ibv_ack_async_event", "IBVERBS_1.1" },
	{ "ibv_query_device", "IBVERBS_1.1" },
	{ "ibv_query_port", "IBVERBS_1.1" },
	{ "ibv_query_gid", "IBVERBS_1.1" },
	{ "ibv_query_qp", "IBVERBS_1.1" },
	{ "ibv_alloc_pd", "IBVERBS_1.1" },
	{ "ibv_dealloc_pd", "IBVERBS_1.1" },
	{ "ibv_reg_mr", "IBVERBS_1.1" },
	{ "ibv_dereg_mr", "IBVERBS_1.1" },
	{ "ibv_create_cq", "IBVERBS_1.1" },
	{ "ibv_destroy_cq", "IBVERBS_1.1" },
	{ "ibv_create_qp", "IBVERBS_1.1" },
	{ "ibv_modify_qp", "IBVERBS_1.1" },
	{ "ibv_destroy_qp", "IBVERBS_1.1" },
	{ "ibv_fork_init", "IBVERBS_1.1" },
	{ "ibv_event_type_str", "IBVERBS_1.1" },
	{ "ibv_wc_status_str", "IBVERBS_1.1" },
	{ "ibv_get_pkey_index", "IBVERBS_1.5" },
	{ "ibv_qp_to_qp_ex", "IBVERBS_1.6" },
	{ "ibv_reg_mr_iova", "IBVERBS_1.7" },
	{ "ibv_reg_mr_iova2", "IBVERBS_1.8" },
	{ "ibv_get_device_index", "IBVERBS_1.9" },
	{ "ibv_import_device", "IBVERBS_1.10" },
	{ "ibv_query_ece", "IBVERBS_1.10" },
	{ "ibv_set_ece", "IBVERBS_1.10" },
	{ "_ibv_query_gid_ex", "IBVERBS_1.11" },
	{ "_ibv_query_gid_table", "IBVERBS_1.11" },
	{ "ibv_reg_dmabuf_mr", "IBVERBS_1.12" },
	{ "ibv_is_fork_initialized", "IBVERBS_1.13" },
	{ "ibv_query_qp_data_in_order", "IBVERBS_1.14" },
	{ "ibv_reg_mr_ex", "IBVERBS_1.15" },
	{ "ibv_dm_export_dmabuf_fd", "IBVERBS_1.16" },
	{ "ibv_reg_buf_mr", "IBVERBS_1.17" },
	{ "ibv_create_comp_cntr", "IBVERBS_1.18" },
	{ "ibv_query_gid_type", "IBVERBS_PRIVATE_34" },
	{ "verbs_register_driver_34", "IBVERBS_PRIVATE_34" },
	{ "verbs_register_driver_57", "IBVERBS_PRIVATE_57" },
	{ "verbs_register_driver_59", "IBVERBS_PRIVATE_59" },
	{ "verbs_register_driver_64", "IBVERBS_PRIVATE_64" },
	{ "verbs_register_driver_65", "IBVERBS_PRIVATE_65" },
};

int main(void)
{
	void *handle = dlopen("libibverbs.so.1", RTLD_NOW);
	int missing = 0;

	if (!handle) {
		fprintf(stderr, "%s\n", dlerror());
		return 1;
	}
	for (unsigned i = 0; i < sizeof(symbols) / sizeof(symbols[0]); i++) {
		if (!dlvsym(handle, symbols[i].name, symbols[i].version)) {
			fprintf(stderr, "missing %s@%s\n", symbols[i].name, symbols[i].version);
			missing++;
		}
	}
	/* A version that a function never had must not be found: otherwise versions mean nothing. */
	if (dlvsym(handle, "ibv_reg_dmabuf_mr", "IBVERBS_1.1")) {
		fprintf(stderr, "ibv_reg_dmabuf_mr@IBVERBS_1.1 must not exist\n");
		missing++;
	}
	if (!missing)
		puts("ok");
	return missing != 0;
}
