/* The rules of the manual pages and the kernel for arguments that are wrong by themselves or in
 * combination. Each rule names its source: a manual page of rdma-core, or a function of the
 * kernel. */

/* A call that returns the errno, or -1 and sets it. */
#define REFUSED_BY(source, words, call, number)                                                                      \
	do {                                                                                                         \
		snprintf(what, sizeof(what), "%s (%s)", words, source);                                              \
		errno = 0;                                                                                           \
		int answer = (int)(call);                                                                            \
		check(answer == (number) || (answer < 0 && errno == (number)), "was not refused with " #number);     \
	} while (0)
/* A call that returns an object. */
#define NOTHING_BY(source, words, call, number)                                                                      \
	do {                                                                                                         \
		snprintf(what, sizeof(what), "%s (%s)", words, source);                                              \
		errno = 0;                                                                                           \
		check(!(call) && errno == (number), "was not refused with " #number);                                \
	} while (0)
/* Where rdma-core's providers would crash, as they read what the program points to. */
#define HERE "rdma-core would crash"

static void queues(struct set *s, struct set *foreign)
{
	const struct ibv_qp_init_attr good = { .qp_type = IBV_QPT_RC, .send_cq = s->cq, .recv_cq = s->cq,
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 } };
	struct ibv_qp_init_attr init = good;
	struct ibv_qp_init_attr_ex ex = { .qp_type = IBV_QPT_RC, .send_cq = s->cq, .recv_cq = s->cq, .cap = good.cap,
		.pd = s->pd, .comp_mask = IBV_QP_INIT_ATTR_PD };
	struct ibv_cq_init_attr_ex cq = { .cqe = 4 };
	struct ibv_modify_cq_attr modify = { 0 };
	struct ibv_srq_init_attr srq = { .attr = { .max_wr = 4, .max_sge = 1 } };
	struct ibv_srq_init_attr_ex srq_ex = { .attr = srq.attr, .pd = s->pd, .comp_mask = IBV_SRQ_INIT_ATTR_PD };
	struct ibv_srq_attr change = { .max_wr = 4 };
	struct ibv_xrcd_init_attr xrcd = { .fd = -1, .oflags = 0100,
		.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS };
	struct ibv_device_attr limits;

	check(ibv_query_device(s->context, &limits) == 0, "limits");

	init.recv_cq = foreign->cq;
	NOTHING_BY("kernel: create_qp, uobj_get_obj_read", "create_qp: a CQ of another context", ibv_create_qp(s->pd, &init), EINVAL);
	init = good, init.srq = foreign->srq;
	NOTHING_BY("kernel: create_qp, uobj_get_obj_read", "create_qp: an SRQ of another context", ibv_create_qp(s->pd, &init), EINVAL);
	init = good, init.send_cq = NULL;
	NOTHING_BY("kernel: create_qp", "create_qp: no CQ", ibv_create_qp(s->pd, &init), EINVAL);
	init = good, init.send_cq = (struct ibv_cq *)s->pd;
	NOTHING_BY(HERE, "create_qp: a domain as CQ", ibv_create_qp(s->pd, &init), EINVAL);
	init = good, init.qp_type = 77;
	NOTHING_BY("kernel: create_qp", "create_qp: no such type", ibv_create_qp(s->pd, &init), EINVAL);
	init = good, init.cap.max_send_wr = (uint32_t)limits.max_qp_wr + 1;
	NOTHING_BY("kernel: rxe_qp_chk_cap", "create_qp: more requests than max_qp_wr", ibv_create_qp(s->pd, &init), EINVAL);
	init.cap.max_send_wr = UINT32_MAX;
	NOTHING_BY("kernel: rxe_qp_chk_cap", "create_qp: as many requests as there are numbers", ibv_create_qp(s->pd, &init), EINVAL);
	init = good, init.cap.max_recv_sge = UINT32_MAX;
	NOTHING_BY("kernel: rxe_qp_chk_cap", "create_qp: more elements than max_sge", ibv_create_qp(s->pd, &init), EINVAL);
	init = good, init.cap.max_inline_data = UINT32_MAX;
	NOTHING_BY("kernel: rxe_qp_chk_cap", "create_qp: more inline data than can be", ibv_create_qp(s->pd, &init), EINVAL);

	ex.comp_mask |= 1u << 30;
	NOTHING_BY("kernel: ib_uverbs_ex_create_qp, unknown bits", "create_qp_ex: an unknown mask bit", ibv_create_qp_ex(s->context, &ex), EOPNOTSUPP);
	ex.comp_mask = 0;
	NOTHING_BY("ibv_create_qp_ex(3)", "create_qp_ex: no domain", ibv_create_qp_ex(s->context, &ex), EINVAL);
	ex.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_CREATE_FLAGS, ex.create_flags = 1u << 31;
	NOTHING_BY("kernel: create_qp, create_flags", "create_qp_ex: an unknown flag", ibv_create_qp_ex(s->context, &ex), EOPNOTSUPP);
	ex.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, ex.send_ops_flags = 1ull << 40;
	NOTHING_BY("rdma-core: check_comp_mask, ibv_wr_post(3)", "create_qp_ex: an unknown operation", ibv_create_qp_ex(s->context, &ex), EOPNOTSUPP);
	ex.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_CREATE_FLAGS, ex.create_flags = 0, ex.pd = foreign->pd;
	NOTHING_BY("kernel: create_qp, uobj_get_obj_read", "create_qp_ex: a domain of another context", ibv_create_qp_ex(s->context, &ex), EINVAL);

	NOTHING_BY("ibv_create_cq(3); kernel: rxe_cq_chk_attr", "create_cq: no entries", ibv_create_cq(s->context, 0, NULL, NULL, 0), EINVAL);
	NOTHING_BY("kernel: rxe_cq_chk_attr", "create_cq: fewer than none", ibv_create_cq(s->context, -1, NULL, NULL, 0), EINVAL);
	NOTHING_BY("kernel: rxe_cq_chk_attr", "create_cq: more than max_cqe", ibv_create_cq(s->context, limits.max_cqe + 1, NULL, NULL, 0), EINVAL);
	NOTHING_BY("kernel: create_cq, comp_vector", "create_cq: no such vector", ibv_create_cq(s->context, 4, NULL, NULL, 4096), EINVAL);
	NOTHING_BY("kernel: create_cq, comp_vector", "create_cq: fewer than none", ibv_create_cq(s->context, 4, NULL, NULL, -1), EINVAL);
	NOTHING_BY("kernel: ib_uverbs_lookup_comp_file", "create_cq: a channel of another context", ibv_create_cq(s->context, 4, NULL, foreign->channel, 0), EINVAL);
	cq.comp_mask = 1u << 30;
	NOTHING_BY("rdma-core: check_comp_mask", "create_cq_ex: an unknown mask bit", ibv_create_cq_ex(s->context, &cq), EOPNOTSUPP);
	cq.comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS, cq.flags = 1u << 30;
	NOTHING_BY("rdma-core: check_comp_mask", "create_cq_ex: an unknown flag", ibv_create_cq_ex(s->context, &cq), EOPNOTSUPP);
	cq.comp_mask = 0, cq.wc_flags = 1ull << 60;
	NOTHING_BY("rdma-core: check_comp_mask", "create_cq_ex: an unknown field", ibv_create_cq_ex(s->context, &cq), EOPNOTSUPP);
	REFUSED_BY("ibv_resize_cq(3); kernel: rxe_cq_chk_attr", "resize_cq: more than max_cqe", ibv_resize_cq(s->cq, limits.max_cqe + 1), EINVAL);
	REFUSED_BY("ibv_resize_cq(3)", "resize_cq: no entries", ibv_resize_cq(s->cq, 0), EINVAL);
	REFUSED_BY("kernel: ib_uverbs_ex_modify_cq", "modify_cq: nothing", ibv_modify_cq(s->cq, &modify), EINVAL);
	modify.attr_mask = 1u << 9;
	REFUSED_BY("kernel: ib_uverbs_ex_modify_cq", "modify_cq: an unknown bit", ibv_modify_cq(s->cq, &modify), EOPNOTSUPP);

	srq.attr.max_wr = UINT32_MAX;
	NOTHING_BY("kernel: rxe_srq_chk_init", "create_srq: more than max_srq_wr", ibv_create_srq(s->pd, &srq), EINVAL);
	srq.attr.max_wr = 4, srq.attr.max_sge = UINT32_MAX;
	NOTHING_BY("kernel: rxe_srq_chk_init", "create_srq: more elements than max_srq_sge", ibv_create_srq(s->pd, &srq), EINVAL);
	srq_ex.comp_mask |= 1u << 30;
	NOTHING_BY("rdma-core: check_comp_mask", "create_srq_ex: an unknown mask bit", ibv_create_srq_ex(s->context, &srq_ex), EOPNOTSUPP);
	srq_ex = (struct ibv_srq_init_attr_ex){ .attr = { .max_wr = 4, .max_sge = 1 }, .pd = s->pd, .srq_type = IBV_SRQT_XRC,
		.xrcd = s->xrcd, .cq = foreign->cq,
		.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ };
	NOTHING_BY("kernel: __uverbs_create_xsrq", "create_srq_ex: a CQ of another context", ibv_create_srq_ex(s->context, &srq_ex), EINVAL);
	srq_ex.cq = s->cq, srq_ex.xrcd = foreign->xrcd;
	NOTHING_BY("kernel: __uverbs_create_xsrq", "create_srq_ex: an XRC domain of another context", ibv_create_srq_ex(s->context, &srq_ex), EINVAL);
	srq_ex.xrcd = s->xrcd, srq_ex.pd = foreign->pd;
	NOTHING_BY("kernel: __uverbs_create_xsrq", "create_srq_ex: a domain of another context", ibv_create_srq_ex(s->context, &srq_ex), EINVAL);
	REFUSED_BY("ibv_modify_srq(3)", "modify_srq: an unknown bit", ibv_modify_srq(s->srq, &change, 1 << 9), EINVAL);
	change.srq_limit = 1000;
	REFUSED_BY("kernel: rxe_srq_chk_attr", "modify_srq: a limit above the size", ibv_modify_srq(s->srq, &change, IBV_SRQ_LIMIT), EINVAL);
	{
		uint32_t number;

		REFUSED_BY("ibv_get_srq_num(3)", "get_srq_num: of no XRC", ibv_get_srq_num(s->srq, &number), EINVAL);
	}
	xrcd.comp_mask = 0;
	NOTHING_BY("ibv_open_xrcd(3)", "open_xrcd: no descriptor", ibv_open_xrcd(s->context, &xrcd), EINVAL);
	xrcd.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, xrcd.oflags = 1;
	NOTHING_BY("ibv_open_xrcd(3)", "open_xrcd: unknown flags", ibv_open_xrcd(s->context, &xrcd), EINVAL);
	xrcd.oflags = 0100, xrcd.fd = 4000;
	NOTHING_BY("kernel: ib_uverbs_open_xrcd, fdget", "open_xrcd: not open", ibv_open_xrcd(s->context, &xrcd), EBADF);
	REFUSED_BY("ibv_dealloc_pd(3)", "dealloc_pd: in use", ibv_dealloc_pd(s->pd), EBUSY);
	REFUSED_BY("ibv_destroy_cq(3)", "destroy_cq: in use", ibv_destroy_cq(s->cq), EBUSY);
}

static void regions(struct set *s, struct set *foreign)
{
	struct ibv_alloc_dm_attr dm = { .length = 0 };
	struct ibv_parent_domain_init_attr parent = { .pd = foreign->pd };
	struct ibv_td_init_attr td = { .comp_mask = 1u << 30 };
	struct ibv_sge sge = { .addr = (uintptr_t)memory, .length = 64, .lkey = s->mr->lkey };
	int zero_based = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_ZERO_BASED;
	struct ibv_mr *(*reg_buf)(struct ibv_pd *, void *, void *, size_t, int) = symbol("ibv_reg_buf_mr");
	void *(*alloc_buf)(struct ibv_pd *, size_t, void **) = symbol("ibv_alloc_buf");
	struct ibv_mr *(*reg_ex)(struct ibv_pd *, void *) = symbol("ibv_reg_mr_ex");
	uint64_t ex[9] = { 64, 1, 1ull << 60, 0, (uintptr_t)memory };
	struct ibv_mr *mr;
	char words[8];
	void *buf;

	NOTHING_BY("kernel: ib_umem_get", "reg_mr: no bytes and no page", ibv_reg_mr(s->pd, memory, 0, 1), EINVAL);
	mr = ibv_reg_mr(s->pd, memory + 64, 0, 1);
	check(mr != NULL && !ibv_dereg_mr(mr), "kernel: ib_umem_num_pages: no bytes of a page are a page");
	NOTHING_BY("kernel: ib_umem_get", "reg_mr: a range that wraps", ibv_reg_mr(s->pd, memory, SIZE_MAX - 64, 1), EINVAL);
	NOTHING_BY("kernel: ib_check_mr_access", "reg_mr: unknown rights", ibv_reg_mr(s->pd, memory, 64, 1 << 12), EINVAL);
	NOTHING_BY("ibv_reg_mr(3)", "reg_mr: REMOTE_WRITE alone", ibv_reg_mr(s->pd, memory, 64, IBV_ACCESS_REMOTE_WRITE), EINVAL);
	NOTHING_BY("ibv_reg_mr(3)", "reg_mr: REMOTE_ATOMIC alone", ibv_reg_mr(s->pd, memory, 64, IBV_ACCESS_REMOTE_ATOMIC), EINVAL);
	NOTHING_BY("kernel: pin_user_pages", "reg_mr: nothing is mapped there", ibv_reg_mr(s->pd, (void *)4096, 64, 1), EFAULT);
	NOTHING_BY("kernel: pin_user_pages", "reg_mr: nothing at NULL", ibv_reg_mr(s->pd, NULL, 64, 1), EFAULT);
	NOTHING_BY("kernel: pin_user_pages", "reg_mr: memory of the kernel", ibv_reg_mr(s->pd, (void *)(SIZE_MAX << 16), 64, 1), EFAULT);
	NOTHING_BY("kernel: ib_uverbs_reg_mr", "reg_mr_iova: other offset in the page", ibv_reg_mr_iova(s->pd, memory, 64, 1, 1), EINVAL);
	NOTHING_BY("ibv_reg_mr_ex(3)", "reg_mr_ex: an unknown bit", reg_ex(s->pd, ex), EOPNOTSUPP);
	ex[2] = 0;
	NOTHING_BY("ibv_reg_mr_ex(3)", "reg_mr_ex: no memory", reg_ex(s->pd, ex), EINVAL);
	NOTHING_BY("docs/semantics.md 2.2", "reg_dmabuf_mr: not open", ibv_reg_dmabuf_mr(s->pd, 0, 4096, 0, -1, 1), EBADF);
	NOTHING_BY("docs/semantics.md 2.2", "reg_dmabuf_mr: no dma-buf", ibv_reg_dmabuf_mr(s->pd, 0, 4096, 0, 2, 1), EINVAL);
	NOTHING_BY("docs/semantics.md 2.2", "reg_dmabuf_mr: offset + length overflows", ibv_reg_dmabuf_mr(s->pd, UINT64_MAX - 4095, 8192, 0, 2, 1), EINVAL);
	NOTHING_BY("docs/semantics.md 2.2", "reg_dmabuf_mr: not congruent", ibv_reg_dmabuf_mr(s->pd, 0, 4096, 8, -1, 1), EINVAL);
	REFUSED_BY("ibv_rereg_mr(3)", "rereg_mr: unknown flags", ibv_rereg_mr(s->mr, 1 << 9, NULL, NULL, 0, 0), EINVAL);
	REFUSED_BY("ibv_rereg_mr(3)", "rereg_mr: no memory", ibv_rereg_mr(s->mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, NULL, 64, 0), EINVAL);
	REFUSED_BY("kernel: ib_uverbs_rereg_mr, uobj_get_obj_read", "rereg_mr: a domain of another context",
		   ibv_rereg_mr(s->mr, IBV_REREG_MR_CHANGE_PD, foreign->pd, NULL, 0, 0), EINVAL);
	REFUSED_BY("kernel: ib_uverbs_rereg_mr", "rereg_mr: NULL for a domain", ibv_rereg_mr(s->mr, IBV_REREG_MR_CHANGE_PD, NULL, NULL, 0, 0), EINVAL);
	REFUSED_BY("ibv_advise_mr(3)", "advise_mr: no such advice", ibv_advise_mr(s->pd, 77, 0, &sge, 1), EOPNOTSUPP);
	REFUSED_BY("ibv_advise_mr(3)", "advise_mr: an unknown flag", ibv_advise_mr(s->pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 1u << 9, &sge, 1), EINVAL);
	REFUSED_BY("ibv_advise_mr(3)", "advise_mr: an empty list", ibv_advise_mr(s->pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, &sge, 0), EINVAL);
	REFUSED_BY("kernel: struct ib_uverbs_attr, 16 bits", "advise_mr: a list too long", ibv_advise_mr(s->pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, &sge, UINT32_MAX), EINVAL);
	NOTHING_BY("ibv_alloc_mw(3)", "alloc_mw: no such type", ibv_alloc_mw(s->pd, 77), EINVAL);

	NOTHING_BY("docs/semantics.md 3", "alloc_dm: no bytes", ibv_alloc_dm(s->context, &dm), EINVAL);
	dm.length = SIZE_MAX;
	NOTHING_BY("docs/semantics.md 3", "alloc_dm: more than there is", ibv_alloc_dm(s->context, &dm), EINVAL);
	dm.length = 64, dm.log_align_req = 77;
	NOTHING_BY("docs/semantics.md 3", "alloc_dm: no such alignment", ibv_alloc_dm(s->context, &dm), EINVAL);
	dm.log_align_req = 0, dm.comp_mask = 1;
	NOTHING_BY("docs/semantics.md 3", "alloc_dm: an unknown bit", ibv_alloc_dm(s->context, &dm), EINVAL);
	NOTHING_BY("docs/semantics.md 3", "reg_dm_mr: not zero based", ibv_reg_dm_mr(s->pd, s->dm, 0, 64, IBV_ACCESS_LOCAL_WRITE), EINVAL);
	NOTHING_BY("docs/semantics.md 3", "reg_dm_mr: outside", ibv_reg_dm_mr(s->pd, s->dm, 4096, 64, zero_based), EINVAL);
	NOTHING_BY("docs/semantics.md 3", "reg_dm_mr: an end that wraps", ibv_reg_dm_mr(s->pd, s->dm, UINT64_MAX - 63, 128, zero_based), EINVAL);
	NOTHING_BY("kernel: UVERBS_METHOD_DM_MR_REG", "reg_dm_mr: memory of another context", ibv_reg_dm_mr(s->pd, foreign->dm, 0, 64, zero_based), EINVAL);
	REFUSED_BY("docs/semantics.md 3", "memcpy_to_dm: outside", ibv_memcpy_to_dm(s->dm, 4096, words, 4), EFAULT);
	REFUSED_BY("docs/semantics.md 9: a sum that wraps", "memcpy_to_dm: an end that wraps", ibv_memcpy_to_dm(s->dm, UINT64_MAX - 3, words, 8), EFAULT);
	REFUSED_BY("docs/semantics.md 3", "memcpy_from_dm: half a word", ibv_memcpy_from_dm(words, s->dm, 0, 2), EINVAL);

	NOTHING_BY("ibv_alloc_parent_domain(3)", "alloc_parent_domain: a domain of another context", ibv_alloc_parent_domain(s->context, &parent), EINVAL);
	parent = (struct ibv_parent_domain_init_attr){ .pd = s->pd, .comp_mask = 1u << 30 };
	NOTHING_BY("ibv_alloc_parent_domain(3)", "alloc_parent_domain: an unknown bit", ibv_alloc_parent_domain(s->context, &parent), EINVAL);
	NOTHING_BY("ibv_alloc_td(3)", "alloc_td: an unknown bit", ibv_alloc_td(s->context, &td), EINVAL);
	NOTHING_BY("ibv_reg_mr_ex(3)", "alloc_buf: no bytes", alloc_buf(s->pd, 0, &buf), EINVAL);
	NOTHING_BY("kernel: mmap", "alloc_buf: more than there is", alloc_buf(s->pd, SIZE_MAX / 2, &buf), ENOMEM);
	NOTHING_BY("ibv_reg_mr_ex(3)", "reg_buf_mr: outside", reg_buf(s->pd, s->buf, memory, 64, 1), EINVAL);
	NOTHING_BY("ibv_reg_mr_ex(3)", "reg_buf_mr: another domain", reg_buf(foreign->pd, s->buf, memory, 64, 1), EINVAL);
	NOTHING_BY("ibv_import_device(3)", "import_device: not open", ibv_import_device(-1), EINVAL);
	NOTHING_BY("ibv_import_pd(3)", "import_pd: no such handle", ibv_import_pd(s->context, UINT32_MAX), ENOENT);
	NOTHING_BY("ibv_import_pd(3)", "import_pd: of another context", ibv_import_pd(s->context, foreign->pd->handle), ENOENT);
	NOTHING_BY("ibv_import_mr(3)", "import_mr: no such handle", ibv_import_mr(s->pd, UINT32_MAX), ENOENT);
	NOTHING_BY("ibv_import_mr(3)", "import_mr: of another context", ibv_import_mr(s->pd, foreign->mr->handle), ENOENT);
	NOTHING_BY("ibv_import_dm(3)", "import_dm: no such handle", ibv_import_dm(s->context, UINT32_MAX), ENOENT);
}

static void states(struct set *s)
{
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC, .send_cq = s->cq, .recv_cq = s->cq,
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 } };
	int to_init = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTS, .port_num = 1 };
	struct ibv_qp *qp = ibv_create_qp(s->pd, &init);
	struct ibv_ah_attr ah = { .port_num = 1, .grh = { .dgid = gid } };
	struct ibv_wc wc = { .wc_flags = IBV_WC_GRH };
	struct ibv_port_attr port;
	union ibv_gid found;
	uint16_t pkey;
	int (*read_file)(const char *, const char *, char *, size_t) = symbol("ibv_read_sysfs_file");
	char name[4];

	check(qp != NULL, "a QP");
	REFUSED_BY("ibv_modify_qp(3)", "modify_qp: an unknown mask bit", ibv_modify_qp(qp, &attr, 1 << 27), EINVAL);
	REFUSED_BY("kernel: ib_modify_qp_is_ok", "modify_qp: RESET to RTS", ibv_modify_qp(qp, &attr, IBV_QP_STATE), EINVAL);
	attr.qp_state = 99;
	REFUSED_BY("kernel: modify_qp", "modify_qp: no such state", ibv_modify_qp(qp, &attr, IBV_QP_STATE), EINVAL);
	attr.qp_state = IBV_QPS_INIT, attr.port_num = 9;
	REFUSED_BY("kernel: modify_qp, rdma_is_port_valid", "modify_qp: no such port", ibv_modify_qp(qp, &attr, to_init), EINVAL);
	attr.port_num = 1, attr.pkey_index = 9;
	REFUSED_BY("kernel: rxe_qp_chk_attr", "modify_qp: no such partition key", ibv_modify_qp(qp, &attr, to_init), EINVAL);
	attr.pkey_index = 0;
	REFUSED_BY("kernel: ib_modify_qp_is_ok", "modify_qp: too few attributes", ibv_modify_qp(qp, &attr, IBV_QP_STATE), EINVAL);
	check(ibv_modify_qp(qp, &attr, to_init) == 0, "to INIT");
	attr.qp_state = IBV_QPS_RTR, attr.path_mtu = 77, attr.min_rnr_timer = 1;
	attr.ah_attr = (struct ibv_ah_attr){ .is_global = 1, .port_num = 1, .grh = { .dgid = gid } };
	int to_rtr = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
		     IBV_QP_MIN_RNR_TIMER;
	REFUSED_BY("kernel: rxe_qp_chk_attr", "modify_qp: no such MTU", ibv_modify_qp(qp, &attr, to_rtr), EINVAL);
	attr.path_mtu = IBV_MTU_1024, attr.ah_attr.grh.sgid_index = 200;
	REFUSED_BY("kernel: rdma_fill_sgid_attr", "modify_qp: no such GID", ibv_modify_qp(qp, &attr, to_rtr), EINVAL);
	attr.ah_attr.grh.sgid_index = 0, attr.min_rnr_timer = 77;
	REFUSED_BY("IBA 9.7.5.2.8", "modify_qp: no such timer", ibv_modify_qp(qp, &attr, to_rtr), EINVAL);
	attr.min_rnr_timer = 1, attr.max_dest_rd_atomic = 255;
	REFUSED_BY("kernel: mlx5_ib_modify_qp", "modify_qp: more READs than max_qp_rd_atom", ibv_modify_qp(qp, &attr, to_rtr), EINVAL);
	check(ibv_destroy_qp(qp) == 0, "the QP can be destroyed");

	NOTHING_BY("kernel: rdma_check_ah_attr", "create_ah: no global route", ibv_create_ah(s->pd, &ah), EINVAL);
	ah.is_global = 1, ah.port_num = 9;
	NOTHING_BY("kernel: rdma_check_ah_attr", "create_ah: no such port", ibv_create_ah(s->pd, &ah), EINVAL);
	ah.port_num = 1, ah.grh.sgid_index = 200;
	NOTHING_BY("kernel: rdma_fill_sgid_attr", "create_ah: no such GID", ibv_create_ah(s->pd, &ah), EINVAL);
	REFUSED_BY(HERE, "init_ah_from_wc: a header that is not there", ibv_init_ah_from_wc(s->context, 1, &wc, NULL, &ah), EINVAL);
	REFUSED_BY("kernel: ib_uverbs_query_port", "query_port: no such port", ibv_query_port(s->context, 9, &port), EINVAL);
	REFUSED_BY("kernel: ib_uverbs_query_port", "query_port: port 0", ibv_query_port(s->context, 0, &port), EINVAL);
	REFUSED_BY("kernel: rdma_query_gid", "query_gid: no such entry", ibv_query_gid(s->context, 1, 1 << 20, &found), EINVAL);
	REFUSED_BY("kernel: rdma_query_gid", "query_gid: fewer than none", ibv_query_gid(s->context, 1, -1, &found), EINVAL);
	REFUSED_BY("kernel: ib_query_pkey", "query_pkey: no such entry", ibv_query_pkey(s->context, 1, 1 << 14, (__be16 *)&pkey), EINVAL);
	REFUSED_BY("rdma-core: ibv_read_sysfs_file", "read_sysfs_file: no such file", read_file("/nowhere", "x", name, sizeof(name)), ENOENT);
	REFUSED_BY("kernel: rdma_attach_mcast", "attach_mcast: to an RC QP", ibv_attach_mcast(s->qp, &gid, 0), EINVAL);
}

static void requests(struct set *s, struct set *foreign, struct set *stale)
{
	struct ibv_sge sge = { .addr = (uintptr_t)memory, .length = 64, .lkey = s->mr->lkey };
	struct ibv_send_wr send = { .opcode = IBV_WR_SEND, .sg_list = &sge, .num_sge = 1 }, *bad_send = NULL;
	struct ibv_recv_wr recv = { .sg_list = &sge, .num_sge = 1 }, *bad_recv = NULL;
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_UD, .send_cq = s->cq, .recv_cq = s->cq,
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 } };
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
	struct ibv_mw_bind bind = { .bind_info = { .mr = s->mr, .addr = (uintptr_t)memory, .length = 64 } };
	struct ibv_qp_ex *qp = ibv_qp_to_qp_ex(s->qp);
	struct ibv_qp *ud;
	struct ibv_wc wc = { 0 };
	int answer = 0;

	/* A request that is refused is named, and nothing is posted (ibv_post_send(3), ibv_post_recv(3)). */
	send.num_sge = 2;
	REFUSED_BY("ibv_post_send(3)", "post_send: more elements than max_send_sge", ibv_post_send(s->qp, &send, &bad_send), EINVAL);
	check(bad_send == &send, "it was not named");
	send.num_sge = INT32_MAX;
	REFUSED_BY("ibv_post_send(3)", "post_send: more elements than anything", ibv_post_send(s->qp, &send, &bad_send), EINVAL);
	send.num_sge = -1;
	REFUSED_BY("ibv_post_send(3)", "post_send: fewer than none", ibv_post_send(s->qp, &send, &bad_send), EINVAL);
	REFUSED_BY(HERE, "post_send: nowhere to name it", ibv_post_send(s->qp, &send, NULL), EINVAL);
	send.num_sge = 1, send.sg_list = NULL;
	REFUSED_BY(HERE, "post_send: no list", ibv_post_send(s->qp, &send, &bad_send), EINVAL);
	send.send_flags = IBV_SEND_INLINE;
	REFUSED_BY(HERE, "post_send: no list of inline data", ibv_post_send(s->qp, &send, &bad_send), EINVAL);
	send.sg_list = &sge, sge.addr = 0;
	REFUSED_BY(HERE, "post_send: inline data at NULL", ibv_post_send(s->qp, &send, &bad_send), EINVAL);
	sge.addr = (uintptr_t)memory, sge.length = UINT32_MAX;
	REFUSED_BY("ibv_post_send(3)", "post_send: more inline data than fits", ibv_post_send(s->qp, &send, &bad_send), EINVAL);
	sge.length = 64, send.send_flags = 0, send.opcode = 77;
	REFUSED_BY("ibv_post_send(3)", "post_send: no such opcode", ibv_post_send(s->qp, &send, &bad_send), EINVAL);
	send.opcode = IBV_WR_BIND_MW;
	REFUSED_BY(HERE, "post_send: no window to bind", ibv_post_send(s->qp, &send, &bad_send), EINVAL);
	recv.num_sge = 2;
	REFUSED_BY("ibv_post_recv(3)", "post_recv: more elements than max_recv_sge", ibv_post_recv(s->qp, &recv, &bad_recv), EINVAL);
	check(bad_recv == &recv, "it was not named");
	recv.num_sge = 1, recv.sg_list = NULL;
	REFUSED_BY(HERE, "post_recv: no list", ibv_post_recv(s->qp, &recv, &bad_recv), EINVAL);
	REFUSED_BY(HERE, "post_recv: nowhere to name it", ibv_post_recv(s->qp, &recv, NULL), EINVAL);
	REFUSED_BY(HERE, "post_srq_recv: no list", ibv_post_srq_recv(s->srq, &recv, &bad_recv), EINVAL);
	REFUSED_BY("rdma-core: ibv_poll_cq", "poll_cq: fewer than none", -ibv_poll_cq(s->cq, -1, NULL), EINVAL);

	bind.bind_info.mr = stale->mr;
	REFUSED_BY(HERE, "bind_mw: a region that was destroyed", s->context->ops.bind_mw(s->qp, s->mw, &bind), EINVAL);
	bind.bind_info.mr = (struct ibv_mr *)s->pd;
	REFUSED_BY(HERE, "bind_mw: a domain as region", s->context->ops.bind_mw(s->qp, s->mw, &bind), EINVAL);

	/* Datagrams need an address handle. */
	ud = ibv_create_qp(s->pd, &init);
	check(ud && !ibv_modify_qp(ud, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY), "a UD QP");
	attr.qp_state = IBV_QPS_RTR;
	check(!ibv_modify_qp(ud, &attr, IBV_QP_STATE), "to RTR");
	attr.qp_state = IBV_QPS_RTS;
	check(!ibv_modify_qp(ud, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN), "to RTS");
	send = (struct ibv_send_wr){ .opcode = IBV_WR_SEND, .sg_list = &sge, .num_sge = 1, .wr.ud = { .remote_qpn = 1 } };
	REFUSED_BY(HERE, "post_send: no address handle", ibv_post_send(ud, &send, &bad_send), EINVAL);
	send.wr.ud.ah = stale->ah;
	REFUSED_BY(HERE, "post_send: an address handle that was destroyed", ibv_post_send(ud, &send, &bad_send), EINVAL);
	send.wr.ud.ah = (struct ibv_ah *)s->pd;
	REFUSED_BY(HERE, "post_send: a domain as address handle", ibv_post_send(ud, &send, &bad_send), EINVAL);
	check(!ibv_destroy_qp(ud), "the UD QP can be destroyed");

	/* The calls between start and complete cannot fail (ibv_wr_post(3)): the last one reports errors. */
	ibv_wr_start(qp);
	ibv_wr_set_sge(qp, s->mr->lkey, (uintptr_t)memory, 64);
	REFUSED_BY("ibv_wr_post(3)", "wr_set_sge: of no request", ibv_wr_complete(qp), EINVAL);
	ibv_wr_start(qp);
	ibv_wr_send(qp);
	ibv_wr_set_sge_list(qp, SIZE_MAX, &sge);
	REFUSED_BY("ibv_wr_post(3)", "wr_set_sge_list: longer than memory", ibv_wr_complete(qp), EINVAL);
	ibv_wr_send(qp);
	REFUSED_BY(HERE, "wr_complete: without ibv_wr_start", ibv_wr_complete(qp), EINVAL);

	/* Objects of two protection domains meet at the request, which fails (IBA 10.6.7.2.3). */
	bind.bind_info.mr = foreign->mr;
	snprintf(what, sizeof(what), "bind_mw: a window of another domain (IBA 10.6.7.2.3)");
	check(!ibv_bind_mw(s->qp, foreign->mw, &bind), "was not posted");
	for (int i = 0; i < 10000 && (answer = ibv_poll_cq(s->cq, 1, &wc)) == 0; i++)
		usleep(100);
	check(answer == 1 && wc.status == IBV_WC_MW_BIND_ERR, ibv_wc_status_str(wc.status));
}

/* Completion counters (the structures of newer headers: three words for a counter, two for what it
 * counts). */
static void counters(struct set *s, struct set *foreign)
{
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC, .send_cq = s->cq, .recv_cq = s->cq,
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 } };
	int (*query)(struct ibv_context *, void *, size_t) = symbol("_ibv_query_comp_cntr_caps");
	void *(*create)(struct ibv_context *, void *) = symbol("ibv_create_comp_cntr");
	int (*destroy_cntr)(void *) = symbol("ibv_destroy_comp_cntr");
	int (*attach)(struct ibv_qp *, void *, void *) = symbol("ibv_qp_attach_comp_cntr");
	int (*set)(void *, uint64_t) = symbol("ibv_set_comp_cntr"), (*inc)(void *, uint64_t) = symbol("ibv_inc_comp_cntr");
	int (*set_err)(void *, uint64_t) = symbol("ibv_set_err_comp_cntr"), (*inc_err)(void *, uint64_t) = symbol("ibv_inc_err_comp_cntr");
	int (*read)(void *, uint64_t *) = symbol("ibv_read_comp_cntr"), (*read_err)(void *, uint64_t *) = symbol("ibv_read_err_comp_cntr");
	struct { uint64_t max_value; uint32_t max_counters, ops; uint64_t newer; } caps = { .newer = 1 };
	struct ibv_qp *qp = ibv_create_qp(s->pd, &init);
	uint32_t attr[3] = { 1, 0, 0 }, ops[2] = { 0, 0 };
	void *cntr = create(s->context, (uint32_t[3]){ 0, 1, 0 });
	uint64_t value = 1, err = 1;

	must(qp && cntr, "a QP and a counter");
	check(!query(s->context, &caps, sizeof(caps)) && caps.max_value == UINT64_MAX && caps.max_counters && caps.ops == 63 && !caps.newer, "caps");
	REFUSED_BY("rdma-core: ibv_cmd_query_comp_cntr_caps", "query_comp_cntr_caps: no room", query(s->context, &caps, 15), EINVAL);
	NOTHING_BY("ibv_create_comp_cntr(3)", "create_comp_cntr: an unknown bit", create(s->context, attr), EOPNOTSUPP);
	attr[0] = 0, attr[1] = 2;
	NOTHING_BY("ibv_create_comp_cntr(3)", "create_comp_cntr: no such type", create(s->context, attr), EOPNOTSUPP);
	attr[1] = 0, attr[2] = 1;
	NOTHING_BY("ibv_create_comp_cntr(3)", "create_comp_cntr: an unknown flag", create(s->context, attr), EOPNOTSUPP);
	check(!read(cntr, &value) && !read_err(cntr, &err) && !value && !err, "not 0");
	check(!set(cntr, UINT64_MAX) && !set_err(cntr, 7) && !inc(cntr, 1) && !inc_err(cntr, 2), "was not changed");
	check(!read(cntr, &value) && !read_err(cntr, &err) && !value && err == 9, "is not what it was set to");
	REFUSED_BY("kernel: QP_ATTACH_COMP_CNTR", "qp_attach_comp_cntr: no operation", attach(qp, cntr, ops), EINVAL);
	ops[1] = 1u << 6 | 1;
	REFUSED_BY("ibv_qp_attach_comp_cntr(3)", "qp_attach_comp_cntr: an unknown operation", attach(qp, cntr, ops), EOPNOTSUPP);
	ops[0] = 1, ops[1] = 1;
	REFUSED_BY("ibv_qp_attach_comp_cntr(3)", "qp_attach_comp_cntr: an unknown bit", attach(qp, cntr, ops), EINVAL);
	ops[0] = 0;
	REFUSED_BY("kernel: QP_ATTACH_COMP_CNTR, uobj_get_obj_read", "qp_attach_comp_cntr: a counter of another context", attach(qp, foreign->cntr, ops), EINVAL);
	REFUSED_BY("ibv_qp_attach_comp_cntr(3)", "qp_attach_comp_cntr: to a QP in RTS", attach(s->qp, cntr, ops), EINVAL);
	check(!attach(qp, cntr, ops), "is not attached");
	REFUSED_BY("ibv_qp_attach_comp_cntr(3)", "qp_attach_comp_cntr: twice", attach(qp, s->cntr, ops), EBUSY);
	REFUSED_BY("ibv_create_comp_cntr(3)", "destroy_comp_cntr: attached", destroy_cntr(cntr), EBUSY);
	check(!ibv_destroy_qp(qp) && !destroy_cntr(cntr), "a QP and a counter go");
	REFUSED_BY(HERE, "destroy_comp_cntr: twice", destroy_cntr(cntr), EINVAL);

	/* As many as there can be. */
	void **all = calloc(caps.max_counters, sizeof(*all));
	uint32_t made = 0;

	attr[2] = 0;
	while (made < caps.max_counters && (all[made] = create(s->context, attr)))
		made++;
	NOTHING_BY("ibv_create_comp_cntr(3)", "create_comp_cntr: more than max_counters", create(s->context, attr), ENOMEM);
	check(made == caps.max_counters - 2, "max_counters is another");
	while (made > 0)
		check(!destroy_cntr(all[--made]), "a counter goes");
	free(all);
}

/* Objects that are destroyed twice, and objects of a context that is closed. */
static void endings(struct set *s)
{
	struct ibv_context *context = ibv_open_device(devices[0]);
	struct ibv_mr *mr = ibv_reg_mr(s->pd, memory, 64, 0);

	check(context && mr, "a context and a region");
	check(!ibv_close_device(context) && !ibv_dereg_mr(mr), "a context and a region go");
	REFUSED_BY(HERE, "close_device: twice", ibv_close_device(context), EINVAL);
	NOTHING_BY(HERE, "alloc_pd: of a context that is closed", ibv_alloc_pd(context), EINVAL);
	REFUSED_BY(HERE, "dereg_mr: twice", ibv_dereg_mr(mr), EINVAL);
}

static void rules(struct set *s, struct set *foreign, struct set *stale)
{
	queues(s, foreign);
	regions(s, foreign);
	states(s);
	requests(s, foreign, stale);
	counters(s, foreign);
	endings(s);
}
