/* Prints which GPUs CUDA shows. */
#include "cuda_api.h"

int main(void)
{
	cu_result (*name)(char *, int, int);
	cu_result result;
	char text[64];
	int count, status;
	void *found;

	cuda_load();
	result = cuInit(0);
	if (result != CU_OK) {
		printf("error %d\n", result);
		return 0;
	}
	CU(cuGetProcAddress_v2("cuDeviceGetName", &found, 12000, 0, &status));
	*(void **)&name = found;
	CU(cuDeviceGetCount(&count));
	printf("%d:", count);
	for (int i = 0; i < count; i++) {
		CU(name(text, sizeof(text), i));
		printf("%s %s", i ? "," : "", text);
	}
	printf("\n");
	return 0;
}
