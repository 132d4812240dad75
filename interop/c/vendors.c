/* Vendors' libraries load next to ours, register their drivers, and find no device of their own. */
#include <dlfcn.h>
#include <infiniband/verbs.h>
#include <stdbool.h>
#include <stdio.h>

int main(void)
{
	static const char *const names[] = { "libmlx5.so.1", "libefa.so.1" };
	void *handles[2];
	struct ibv_device **list;
	int n;

	for (int i = 0; i < 2; i++) {
		handles[i] = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
		if (!handles[i]) {
			fprintf(stderr, "%s\n", dlerror());
			return 1;
		}
	}
	list = ibv_get_device_list(&n);
	if (!list || n < 1) {
		fprintf(stderr, "no device\n");
		return 1;
	}
	bool (*is_mlx5)(struct ibv_device *) = (bool (*)(struct ibv_device *))dlsym(handles[0], "mlx5dv_is_supported");
	int (*is_efa)(struct ibv_context *, void *, uint32_t) =
		(int (*)(struct ibv_context *, void *, uint32_t))dlsym(handles[1], "efadv_query_device");
	if (!is_mlx5 || !is_efa) {
		fprintf(stderr, "%s\n", dlerror());
		return 1;
	}
	for (int i = 0; i < n; i++) {
		struct ibv_context *ctx = ibv_open_device(list[i]);
		char attr[256] = { 0 };

		if (!ctx || is_mlx5(list[i]) || is_efa(ctx, attr, sizeof(attr)) == 0) {
			fprintf(stderr, "%s passes for a vendor's device\n", ibv_get_device_name(list[i]));
			return 1;
		}
		ibv_close_device(ctx);
	}
	ibv_free_device_list(list);
	puts("ok");
	return 0;
}
