/* Lists the providers and interfaces of libfabric, and their capabilities. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <rdma/fabric.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_errno.h>

#include "shim.h"

struct ofi_exports ofi_library;

/* The version of the headers, or of the library if that is older. */
uint32_t ofi_api_version(void) {
    uint32_t built = FI_VERSION(FI_MAJOR_VERSION, FI_MINOR_VERSION), loaded = ofi_library.version();
    return loaded < built ? loaded : built;
}

static struct fi_info *hints_of(const struct ofi_query *query, int atomics) {
    struct fi_info *hints = ofi_library.dupinfo(NULL);
    if (!hints)
        return NULL;
    hints->ep_attr->type = query->kind == OFI_MSG ? FI_EP_MSG : FI_EP_RDM;
    hints->caps = FI_MSG | FI_RMA | (atomics ? FI_ATOMIC : 0);
    hints->mode = FI_CONTEXT | FI_CONTEXT2 | FI_RX_CQ_DATA;
    hints->domain_attr->mr_mode =
        FI_MR_LOCAL | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_VIRT_ADDR | FI_MR_ENDPOINT;
    hints->domain_attr->threading = FI_THREAD_DOMAIN;
    hints->domain_attr->resource_mgmt = FI_RM_ENABLED;
    /* No progress thread of the provider, even if it offers one: the waiting threads make progress. */
    hints->domain_attr->control_progress = FI_PROGRESS_MANUAL;
    hints->domain_attr->data_progress = FI_PROGRESS_MANUAL;
    hints->fabric_attr->prov_name = strdup(query->provider);
    if (query->domain)
        hints->domain_attr->name = strdup(query->domain);
    return hints;
}

/* Checks the kind of endpoint, the full name of the provider (no further layer) and the domain: some providers ignore
 * these hints. */
int ofi_matches(const struct ofi_query *query, const struct fi_info *info) {
    enum fi_ep_type type = query->kind == OFI_MSG ? FI_EP_MSG : FI_EP_RDM;
    return info->ep_attr->type == type && !strcmp(info->fabric_attr->prov_name, query->provider) &&
           (!query->domain || !strcmp(info->domain_attr->name, query->domain));
}

static int find_with(const struct ofi_query *query, int atomics, struct fi_info **info) {
    struct fi_info *hints = hints_of(query, atomics);
    if (!hints)
        return -FI_ENOMEM;
    int rc = ofi_library.getinfo(ofi_api_version(), query->source, NULL, query->source ? FI_SOURCE : 0, hints, info);
    ofi_library.freeinfo(hints);
    return rc;
}

/* All that match, with atomics if the provider has them. To be freed by the caller. */
int ofi_find(const struct ofi_query *query, struct fi_info **info) {
    int rc = find_with(query, 1, info);
    return rc == -FI_ENODATA ? find_with(query, 0, info) : rc;
}

static void copy_name(char *into, size_t size, const char *from) {
    snprintf(into, size, "%s", from ? from : "");
}

static void describe_address(const struct fi_info *info, char *into, size_t size) {
    into[0] = 0;
    if (!info->src_addr)
        return;
    if (info->addr_format == FI_SOCKADDR_IN || info->addr_format == FI_SOCKADDR ||
        info->addr_format == FI_SOCKADDR_IN6) {
        const struct sockaddr *address = info->src_addr;
        if (address->sa_family == AF_INET)
            inet_ntop(AF_INET, &((const struct sockaddr_in *)address)->sin_addr, into, (socklen_t)size);
        else if (address->sa_family == AF_INET6)
            inet_ntop(AF_INET6, &((const struct sockaddr_in6 *)address)->sin6_addr, into, (socklen_t)size);
    }
}

void ofi_describe(const struct fi_info *info, struct ofi_facts *facts) {
    memset(facts, 0, sizeof *facts);
    copy_name(facts->provider, sizeof facts->provider, info->fabric_attr->prov_name);
    copy_name(facts->fabric, sizeof facts->fabric, info->fabric_attr->name);
    copy_name(facts->domain, sizeof facts->domain, info->domain_attr->name);
    describe_address(info, facts->address, sizeof facts->address);
    facts->kind = info->ep_attr->type == FI_EP_MSG ? OFI_MSG : OFI_RDM;
    facts->is_up = 1;
    if (info->nic && info->nic->link_attr) {
        facts->link_bits_per_second = info->nic->link_attr->speed;
        facts->link_mtu_bytes = info->nic->link_attr->mtu;
        facts->is_up = info->nic->link_attr->state != FI_LINK_DOWN;
    }
    int mode = info->domain_attr->mr_mode;
    uint64_t order = info->tx_attr->msg_order;
    uint64_t rx_order = info->rx_attr->msg_order;
    facts->inject_bytes = info->tx_attr->inject_size;
    facts->max_message_bytes = info->ep_attr->max_msg_size;
    facts->key_bytes = info->domain_attr->mr_key_size;
    facts->local_registration = !!(mode & FI_MR_LOCAL);
    facts->virtual_addresses = !!(mode & FI_MR_VIRT_ADDR);
    facts->provider_keys = !!(mode & FI_MR_PROV_KEY);
    /* An order that holds for small operations only is as good as none. */
    facts->writes_in_order = (order & rx_order & (FI_ORDER_WAW | FI_ORDER_RMA_WAW)) &&
                             info->ep_attr->max_order_waw_size >= OFI_ORDERED_BYTES;
    facts->reads_in_order = (order & rx_order & (FI_ORDER_RAW | FI_ORDER_RMA_RAW)) &&
                            info->ep_attr->max_order_raw_size >= OFI_ORDERED_BYTES;
    facts->receives = ((info->mode | info->rx_attr->mode) & FI_RX_CQ_DATA) != 0;
    facts->completion_fd = facts->event_fd = -1;
}

int ofi_providers(ofi_visitor *visit, void *context) {
    struct fi_info *all = NULL;
    int rc = ofi_library.getinfo(ofi_api_version(), NULL, NULL, FI_PROV_ATTR_ONLY, NULL, &all);
    for (struct fi_info *info = all; !rc && info; info = info->next) {
        struct ofi_facts facts;
        memset(&facts, 0, sizeof facts);
        copy_name(facts.provider, sizeof facts.provider, info->fabric_attr->prov_name);
        visit(context, &facts);
    }
    if (all)
        ofi_library.freeinfo(all);
    return rc;
}

int ofi_interfaces(const struct ofi_query *query, ofi_visitor *visit, void *context) {
    struct fi_info *all = NULL;
    int rc = ofi_find(query, &all);
    for (struct fi_info *info = all; !rc && info; info = info->next) {
        struct ofi_facts facts;
        ofi_describe(info, &facts);
        if (ofi_matches(query, info))
            visit(context, &facts);
    }
    if (all)
        ofi_library.freeinfo(all);
    return rc;
}
