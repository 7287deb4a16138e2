/* Operations and their completions, and the table of everything. */

#include <stdio.h>
#include <string.h>

#include <sys/uio.h>

#include <rdma/fabric.h>
#include <rdma/fi_atomic.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>

#include "shim.h"

_Static_assert(sizeof(struct ofi_completion) == sizeof(struct fi_cq_data_entry), "completions are read in place");
_Static_assert(offsetof(struct ofi_completion, data) == offsetof(struct fi_cq_data_entry, data), "as above");
_Static_assert(sizeof(struct fi_context2) <= 64, "contexts have 64 bytes");

static int enroll(struct ofi_link *link, void *memory, size_t len_bytes, int remote, uint64_t key,
                  struct ofi_registration *registration) {
    uint64_t access = FI_READ | FI_WRITE | (remote ? FI_REMOTE_READ | FI_REMOTE_WRITE : 0);
    struct fid_mr *mr = NULL;
    int rc = fi_mr_reg(link->domain, memory, len_bytes, access, 0, key, 0, &mr, NULL);
    if (rc)
        return rc;
    if (link->info->domain_attr->mr_mode & FI_MR_ENDPOINT) {
        rc = link->ep ? fi_mr_bind(mr, &link->ep->fid, 0) : -FI_EOPBADSTATE;
        if (!rc)
            rc = fi_mr_enable(mr);
        if (rc) {
            (void)fi_close(&mr->fid);
            return rc;
        }
    }
    registration->handle = mr;
    registration->descriptor = fi_mr_desc(mr);
    registration->key = fi_mr_key(mr);
    return 0;
}

static void dismiss(void *handle) {
    struct fid_mr *mr = handle;
    (void)fi_close(&mr->fid);
}

/* libfabric's verbs provider says that it has atomics, and takes the operand's address for its value. */
static int has_atomics(struct ofi_link *link) {
    size_t count = 0;
    if (!(link->info->caps & FI_ATOMIC) || !link->ep || !strcmp(link->info->fabric_attr->prov_name, "verbs"))
        return 0;
    return !fi_fetch_atomicvalid(link->ep, FI_UINT64, FI_SUM, &count) && count > 0 &&
           !fi_compare_atomicvalid(link->ep, FI_UINT64, FI_CSWAP, &count) && count > 0;
}

static int post_receive(struct ofi_link *link, void *context) {
    return (int)fi_recv(link->ep, NULL, 0, NULL, FI_ADDR_UNSPEC, context);
}

static int post_message(struct ofi_link *link, const struct ofi_transfer *t, uint64_t flags) {
    struct iovec local = {.iov_base = t->local, .iov_len = t->len_bytes};
    struct fi_rma_iov remote = {.addr = t->remote, .len = t->len_bytes, .key = t->key};
    void *descriptor = t->descriptor;
    struct fi_msg_rma message = {.msg_iov = &local,
                                 .desc = &descriptor,
                                 .iov_count = 1,
                                 .addr = link->peer,
                                 .rma_iov = &remote,
                                 .rma_iov_count = 1,
                                 .context = t->context,
                                 .data = t->data};
    if (flags & FI_READ)
        return (int)fi_readmsg(link->ep, &message, FI_COMPLETION);
    return (int)fi_writemsg(link->ep, &message, flags | FI_COMPLETION);
}

static int post_write(struct ofi_link *link, const struct ofi_transfer *t) {
    return post_message(link, t, 0);
}

/* Completes when the bytes are in the peer's memory. */
static int post_write_delivered(struct ofi_link *link, const struct ofi_transfer *t) {
    return post_message(link, t, FI_DELIVERY_COMPLETE);
}

static int post_write_data(struct ofi_link *link, const struct ofi_transfer *t) {
    return post_message(link, t, FI_REMOTE_CQ_DATA);
}

static int post_write_data_silently(struct ofi_link *link, const struct ofi_transfer *t) {
    return (int)fi_writedata(link->ep, t->local, t->len_bytes, t->descriptor, t->data, link->peer, t->remote, t->key,
                             t->context);
}

static int post_inject(struct ofi_link *link, const struct ofi_transfer *t) {
    return (int)fi_inject_write(link->ep, t->local, t->len_bytes, link->peer, t->remote, t->key);
}

static int post_inject_data(struct ofi_link *link, const struct ofi_transfer *t) {
    return (int)fi_inject_writedata(link->ep, t->local, t->len_bytes, t->data, link->peer, t->remote, t->key);
}

static int post_read(struct ofi_link *link, const struct ofi_transfer *t) {
    return post_message(link, t, FI_READ);
}

/* An atomic on one word: operand, expected value and result are the local words. */
struct atomic {
    struct fi_ioc operand, expected, result;
    struct fi_rma_ioc remote;
    struct fi_msg_atomic message;
};

static void fill_atomic(struct atomic *atomic, struct ofi_link *link, const struct ofi_transfer *t, enum fi_op op) {
    uint64_t *words = t->local;
    atomic->operand = (struct fi_ioc){.addr = &words[0], .count = 1};
    atomic->expected = (struct fi_ioc){.addr = &words[1], .count = 1};
    atomic->result = (struct fi_ioc){.addr = &words[2], .count = 1};
    atomic->remote = (struct fi_rma_ioc){.addr = t->remote, .count = 1, .key = t->key};
    atomic->message = (struct fi_msg_atomic){.msg_iov = &atomic->operand,
                                             .desc = (void **)&t->descriptor,
                                             .iov_count = 1,
                                             .addr = link->peer,
                                             .rma_iov = &atomic->remote,
                                             .rma_iov_count = 1,
                                             .datatype = FI_UINT64,
                                             .op = op,
                                             .context = t->context};
}

static int post_fetch_add(struct ofi_link *link, const struct ofi_transfer *t) {
    struct atomic atomic;
    void *descriptor = t->descriptor;
    fill_atomic(&atomic, link, t, FI_SUM);
    return (int)fi_fetch_atomicmsg(link->ep, &atomic.message, &atomic.result, &descriptor, 1, FI_COMPLETION);
}

static int post_compare_swap(struct ofi_link *link, const struct ofi_transfer *t) {
    struct atomic atomic;
    void *descriptor = t->descriptor;
    fill_atomic(&atomic, link, t, FI_CSWAP);
    return (int)fi_compare_atomicmsg(link->ep, &atomic.message, &atomic.expected, &descriptor, 1, &atomic.result,
                                     &descriptor, 1, FI_COMPLETION);
}

static int poll_completions(struct ofi_link *link, struct ofi_completion *completions, size_t count) {
    return (int)fi_cq_read(link->cq, completions, count);
}

static int take_failure(struct ofi_link *link, struct ofi_failure *failure) {
    struct fi_cq_err_entry entry;
    char text[128] = "";
    memset(&entry, 0, sizeof entry);
    ssize_t rc = fi_cq_readerr(link->cq, &entry, 0);
    if (rc < 0)
        return (int)rc;
    const char *said = fi_cq_strerror(link->cq, entry.prov_errno, entry.err_data, text, sizeof text);
    failure->context = entry.op_context;
    failure->error = entry.err;
    snprintf(failure->text, sizeof failure->text, "%s", said ? said : "");
    return 1;
}

static int try_wait(struct ofi_link *link) {
    struct fid *objects[2] = {&link->cq->fid, link->eq ? &link->eq->fid : NULL};
    return fi_trywait(link->fabric, objects, link->eq ? 2 : 1);
}

static void fill_transfers(struct ofi_table *table) {
    table->remote_data = FI_REMOTE_CQ_DATA;
    table->has_atomics = has_atomics;
    table->enroll = enroll;
    table->dismiss = dismiss;
    table->receive = post_receive;
    table->write = post_write;
    table->write_delivered = post_write_delivered;
    table->write_data = post_write_data;
    table->write_data_silently = post_write_data_silently;
    table->inject = post_inject;
    table->inject_data = post_inject_data;
    table->read = post_read;
    table->fetch_add = post_fetch_add;
    table->compare_swap = post_compare_swap;
    table->poll = poll_completions;
    table->failure = take_failure;
    table->try_wait = try_wait;
}

static struct ofi_table table;

const struct ofi_table *sublet_ofi_bind(const struct ofi_exports *exports) {
    ofi_library = *exports;
    /* Before 1.9 structures had other layouts. */
    if (ofi_library.version() < FI_VERSION(1, 9))
        return NULL;
    fill_transfers(&table);
    table.providers = ofi_providers;
    table.interfaces = ofi_interfaces;
    table.open = ofi_open;
    table.close = ofi_close;
    table.listen = ofi_listen;
    table.name = ofi_name;
    table.insert = ofi_insert;
    table.dial = ofi_dial;
    table.event = ofi_next_event;
    table.admit = ofi_admit;
    table.accept = ofi_accept;
    table.refuse = ofi_refuse;
    table.shutdown = ofi_shutdown;
    table.error_text = ofi_library.strerror;
    return &table;
}
