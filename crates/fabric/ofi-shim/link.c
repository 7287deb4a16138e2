/* Opens what a connection needs, and makes the connection. */

#include <stdlib.h>
#include <string.h>

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>

#include "shim.h"

/* More completions than both sides can have pending at a time: see the slots and operations of the Rust side. */
#define COMPLETIONS 1024
#define TOKEN_BYTES 16
/* Operations and messages of one direction that can be in progress, with a reserve. Some providers allocate memory for
 * the whole queue, tens of megabytes. */
#define QUEUE 256

static int open_completions(struct ofi_link *link, int want_descriptor, int32_t *fd) {
    struct fi_cq_attr attributes = {.size = COMPLETIONS, .format = FI_CQ_FORMAT_DATA, .wait_obj = FI_WAIT_FD};
    *fd = -1;
    if (want_descriptor && !fi_cq_open(link->domain, &attributes, &link->cq, NULL)) {
        int rc = fi_control(&link->cq->fid, FI_GETWAIT, fd);
        if (!rc)
            return 0;
        fi_close(&link->cq->fid);
        link->cq = NULL;
        *fd = -1;
    }
    attributes.wait_obj = FI_WAIT_NONE;
    return fi_cq_open(link->domain, &attributes, &link->cq, NULL);
}

static int open_events(struct ofi_link *link, int32_t *fd) {
    struct fi_eq_attr attributes = {.wait_obj = FI_WAIT_FD};
    int rc = fi_eq_open(link->fabric, &attributes, &link->eq, NULL);
    return rc ? rc : fi_control(&link->eq->fid, FI_GETWAIT, fd);
}

static int open_endpoint(struct ofi_link *link, struct fi_info *info) {
    int rc = fi_endpoint(link->domain, info, &link->ep, NULL);
    if (!rc)
        rc = fi_ep_bind(link->ep, link->kind == OFI_MSG ? &link->eq->fid : &link->av->fid, 0);
    /* A completion that is not needed costs some providers system calls. */
    if (!rc)
        rc = fi_ep_bind(link->ep, &link->cq->fid, FI_TRANSMIT | FI_SELECTIVE_COMPLETION);
    if (!rc)
        rc = fi_ep_bind(link->ep, &link->cq->fid, FI_RECV);
    return rc ? rc : fi_enable(link->ep);
}

static int open_datagrams(struct ofi_link *link) {
    struct fi_av_attr attributes = {.type = FI_AV_UNSPEC, .count = 1};
    int rc = fi_av_open(link->domain, &attributes, &link->av, NULL);
    return rc ? rc : open_endpoint(link, link->info);
}

static int open_all(struct ofi_link *link, const struct ofi_query *query, struct ofi_facts *facts) {
    int rc = ofi_library.fabric(link->info->fabric_attr, &link->fabric, NULL);
    if (!rc)
        rc = fi_domain(link->fabric, link->info, &link->domain, NULL);
    if (!rc)
        rc = open_completions(link, query->want_descriptor != 0, &facts->completion_fd);
    if (rc)
        return rc;
    return link->kind == OFI_MSG ? open_events(link, &facts->event_fd) : open_datagrams(link);
}

int ofi_open(const struct ofi_query *query, struct ofi_link **opened, struct ofi_facts *facts) {
    struct fi_info *all = NULL, *info;
    int rc = ofi_find(query, &all);
    if (rc)
        return rc;
    for (info = all; info && !ofi_matches(query, info); info = info->next)
        ;
    struct ofi_link *link = info ? calloc(1, sizeof *link) : NULL;
    if (link)
        link->info = ofi_library.dupinfo(info);
    ofi_library.freeinfo(all);
    if (!info)
        return -FI_ENODATA;
    if (!link || !link->info) {
        free(link);
        return -FI_ENOMEM;
    }
    if (link->info->tx_attr->size > QUEUE)
        link->info->tx_attr->size = QUEUE;
    if (link->info->rx_attr->size > QUEUE)
        link->info->rx_attr->size = QUEUE;
    link->kind = query->kind;
    link->peer = FI_ADDR_UNSPEC;
    ofi_describe(link->info, facts);
    rc = open_all(link, query, facts);
    if (rc)
        ofi_close(link);
    else
        *opened = link;
    return rc;
}

static void close_one(struct fid *object) {
    if (object)
        (void)fi_close(object);
}

/* All registrations must have been dismissed before, or closing the domain leaks them. */
void ofi_close(struct ofi_link *link) {
    close_one(link->ep ? &link->ep->fid : NULL);
    close_one(link->pep ? &link->pep->fid : NULL);
    close_one(link->av ? &link->av->fid : NULL);
    close_one(link->cq ? &link->cq->fid : NULL);
    close_one(link->domain ? &link->domain->fid : NULL);
    close_one(link->eq ? &link->eq->fid : NULL);
    close_one(link->fabric ? &link->fabric->fid : NULL);
    if (link->request)
        ofi_library.freeinfo(link->request);
    ofi_library.freeinfo(link->info);
    free(link);
}

int ofi_listen(struct ofi_link *link) {
    int rc = fi_passive_ep(link->fabric, link->info, &link->pep, NULL);
    if (!rc)
        rc = fi_pep_bind(link->pep, &link->eq->fid, 0);
    return rc ? rc : fi_listen(link->pep);
}

/* Where this end is, for the peer's `insert` or `dial`. */
int ofi_name(struct ofi_link *link, void *name, size_t *len_bytes) {
    if (link->kind == OFI_RDM)
        return fi_getname(&link->ep->fid, name, len_bytes);
    if (link->pep)
        return fi_getname(&link->pep->fid, name, len_bytes);
    if (!link->info->src_addr || link->info->src_addrlen > *len_bytes)
        return -FI_ETOOSMALL;
    memcpy(name, link->info->src_addr, link->info->src_addrlen);
    *len_bytes = link->info->src_addrlen;
    return 0;
}

int ofi_insert(struct ofi_link *link, const void *name, size_t len_bytes) {
    unsigned char whole[256] = {0}; /* libfabric reads as many bytes as it takes for its kind of address */
    fi_addr_t peer = FI_ADDR_UNSPEC;
    if (len_bytes > sizeof whole)
        return -FI_EINVAL;
    memcpy(whole, name, len_bytes);
    int rc = fi_av_insert(link->av, whole, 1, &peer, 0, NULL);
    if (rc != 1)
        return rc < 0 ? rc : -FI_EADDRNOTAVAIL;
    link->peer = peer;
    return 0;
}

int ofi_dial(struct ofi_link *link, const void *name, size_t len_bytes, const uint8_t token[16]) {
    struct fi_info *info = ofi_library.dupinfo(link->info);
    if (!info)
        return -FI_ENOMEM;
    free(info->dest_addr);
    info->dest_addr = calloc(1, 256);
    if (!info->dest_addr || len_bytes > 256) {
        ofi_library.freeinfo(info);
        return -FI_ENOMEM;
    }
    memcpy(info->dest_addr, name, len_bytes);
    info->dest_addrlen = len_bytes;
    int rc = open_endpoint(link, info);
    if (!rc)
        rc = fi_connect(link->ep, info->dest_addr, token, TOKEN_BYTES);
    ofi_library.freeinfo(info);
    return rc;
}

static void take_request(struct ofi_link *link, struct fi_info *info, const uint8_t *token, size_t len_bytes,
                         struct ofi_event *event) {
    if (link->request)
        ofi_library.freeinfo(link->request);
    link->request = info;
    event->kind = OFI_REQUEST;
    event->token_bytes = len_bytes < TOKEN_BYTES ? (uint32_t)len_bytes : TOKEN_BYTES;
    memcpy(event->token, token, event->token_bytes);
}

static int failed_event(struct ofi_link *link, struct ofi_event *event) {
    struct fi_eq_err_entry entry;
    memset(&entry, 0, sizeof entry);
    if (fi_eq_readerr(link->eq, &entry, 0) < 0)
        return 0;
    event->kind = OFI_FAILED;
    event->error = entry.err;
    return 0;
}

int ofi_next_event(struct ofi_link *link, struct ofi_event *event) {
    union {
        struct fi_eq_cm_entry entry;
        uint8_t bytes[sizeof(struct fi_eq_cm_entry) + 256];
    } read;
    uint32_t kind = 0;
    memset(event, 0, sizeof *event);
    ssize_t len = fi_eq_read(link->eq, &kind, &read, sizeof read, 0);
    if (len == -FI_EAGAIN)
        return 0;
    if (len == -FI_EAVAIL)
        return failed_event(link, event);
    if (len < 0)
        return (int)len;
    if (kind == FI_CONNREQ)
        take_request(link, read.entry.info, read.entry.data, (size_t)len - sizeof read.entry, event);
    else if (kind == FI_CONNECTED)
        event->kind = OFI_CONNECTED;
    else if (kind == FI_SHUTDOWN)
        event->kind = OFI_SHUTDOWN;
    return 0;
}

/* Makes the endpoint for who asked last. Receives must be posted before it is accepted. */
int ofi_admit(struct ofi_link *link) {
    return link->request ? open_endpoint(link, link->request) : -FI_EOPBADSTATE;
}

int ofi_accept(struct ofi_link *link) {
    int rc = fi_accept(link->ep, NULL, 0);
    ofi_library.freeinfo(link->request);
    link->request = NULL;
    return rc;
}

void ofi_refuse(struct ofi_link *link) {
    if (!link->request)
        return;
    (void)fi_reject(link->pep, link->request->handle, NULL, 0);
    ofi_library.freeinfo(link->request);
    link->request = NULL;
}

void ofi_shutdown(struct ofi_link *link) {
    if (link->ep)
        (void)fi_shutdown(link->ep, 0);
}
