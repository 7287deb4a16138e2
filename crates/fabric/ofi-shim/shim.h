/* Declares the part of libfabric that the Rust side of the ofi provider uses: flat structures and a table of functions,
 * so that no layout of libfabric's own is written down twice.
 *
 * libfabric is not linked. Its few exported functions come in `struct ofi_exports`, looked up in the loaded library; all
 * others are inline calls through tables that its objects carry. One thread at a time may be inside of a link's
 * functions. Functions return 0 or a count, or a negative errno of libfabric. */
#ifndef SUBLET_OFI_SHIM_H
#define SUBLET_OFI_SHIM_H

#include <stddef.h>
#include <stdint.h>

struct fi_info;
struct fi_fabric_attr;
struct fid_fabric;

struct ofi_exports {
    int (*getinfo)(uint32_t version, const char *node, const char *service, uint64_t flags,
                   const struct fi_info *hints, struct fi_info **info);
    void (*freeinfo)(struct fi_info *info);
    struct fi_info *(*dupinfo)(const struct fi_info *info);
    int (*fabric)(struct fi_fabric_attr *attributes, struct fid_fabric **fabric, void *context);
    const char *(*strerror)(int error);
    uint32_t (*version)(void);
};

/* The largest transfer that is made in one operation. */
#define OFI_ORDERED_BYTES (16u << 20)

enum ofi_kind { OFI_RDM = 0, OFI_MSG = 1 };

/* A search for interfaces. `provider` must be the provider's full name; `domain` and `source` (an IP address) may be
 * null. */
struct ofi_query {
    const char *provider;
    const char *domain;
    const char *source;
    uint32_t kind;
    uint32_t want_descriptor; /* whether the completion queue needs a descriptor to wait on */
};

/* Properties of a provider's interface. Longer names are cut. */
struct ofi_facts {
    char provider[64];
    char fabric[64];
    char domain[64];
    char address[128];
    uint32_t kind;
    uint32_t is_up;
    uint64_t link_bits_per_second; /* 0: not said */
    uint64_t link_mtu_bytes;       /* 0: not said */
    uint64_t inject_bytes;
    uint64_t max_message_bytes;
    uint64_t key_bytes;
    uint32_t local_registration; /* this side's buffers must be registered */
    uint32_t virtual_addresses;  /* remote addresses are addresses in the owner's process, not offsets */
    uint32_t provider_keys;      /* the provider chooses the keys */
    uint32_t writes_in_order;    /* a write lands after all writes before it */
    uint32_t reads_in_order;     /* a read sees all writes before it */
    uint32_t receives;           /* every remote completion takes a posted receive */
    int32_t completion_fd;       /* -1: cannot be waited for */
    int32_t event_fd;            /* -1: none */
};

struct ofi_registration {
    void *handle;
    void *descriptor;
    uint64_t key;
};

/* One operation. `context` is 64 bytes that stay in place until it has completed. */
struct ofi_transfer {
    void *local;
    size_t len_bytes;
    void *descriptor;
    uint64_t remote;
    uint64_t key;
    uint64_t data;
    void *context;
};

/* Laid out as `struct fi_cq_data_entry`. */
struct ofi_completion {
    void *context;
    uint64_t flags;
    size_t len_bytes;
    void *buffer;
    uint64_t data;
};

struct ofi_failure {
    void *context; /* null: the operation is unknown */
    int32_t error;
    char text[160];
};

enum ofi_event_kind { OFI_NOTHING = 0, OFI_REQUEST = 1, OFI_CONNECTED = 2, OFI_SHUTDOWN = 3, OFI_FAILED = 4 };

struct ofi_event {
    uint32_t kind;
    int32_t error;
    uint8_t token[16]; /* for a request: the token that the other side shows */
    uint32_t token_bytes;
};

struct ofi_link;

typedef void ofi_visitor(void *context, const struct ofi_facts *facts);

struct ofi_table {
    uint64_t remote_data; /* the flag of a completion that carries the peer's immediate data */

    int (*providers)(ofi_visitor *visit, void *context);
    int (*interfaces)(const struct ofi_query *query, ofi_visitor *visit, void *context);

    int (*open)(const struct ofi_query *query, struct ofi_link **link, struct ofi_facts *facts);
    void (*close)(struct ofi_link *link);
    int (*listen)(struct ofi_link *link);
    int (*name)(struct ofi_link *link, void *name, size_t *len_bytes);
    int (*insert)(struct ofi_link *link, const void *name, size_t len_bytes);
    int (*dial)(struct ofi_link *link, const void *name, size_t len_bytes, const uint8_t token[16]);
    int (*event)(struct ofi_link *link, struct ofi_event *event);
    int (*admit)(struct ofi_link *link);
    int (*accept)(struct ofi_link *link);
    void (*refuse)(struct ofi_link *link);
    void (*shutdown)(struct ofi_link *link);
    int (*has_atomics)(struct ofi_link *link); /* once there is an endpoint */

    int (*enroll)(struct ofi_link *link, void *memory, size_t len_bytes, int remote, uint64_t key,
                  struct ofi_registration *registration);
    void (*dismiss)(void *handle);

    int (*receive)(struct ofi_link *link, void *context);
    int (*write)(struct ofi_link *link, const struct ofi_transfer *transfer);
    int (*write_delivered)(struct ofi_link *link, const struct ofi_transfer *transfer);
    int (*write_data)(struct ofi_link *link, const struct ofi_transfer *transfer);
    int (*write_data_silently)(struct ofi_link *link, const struct ofi_transfer *transfer); /* no completion here */
    int (*inject)(struct ofi_link *link, const struct ofi_transfer *transfer);
    int (*inject_data)(struct ofi_link *link, const struct ofi_transfer *transfer);
    int (*read)(struct ofi_link *link, const struct ofi_transfer *transfer);
    /* `local` has three words: the operand, the expected value, and the result. */
    int (*fetch_add)(struct ofi_link *link, const struct ofi_transfer *transfer);
    int (*compare_swap)(struct ofi_link *link, const struct ofi_transfer *transfer);

    int (*poll)(struct ofi_link *link, struct ofi_completion *completions, size_t count);
    int (*failure)(struct ofi_link *link, struct ofi_failure *failure);
    int (*try_wait)(struct ofi_link *link); /* 0: the caller may wait on the descriptors */
    const char *(*error_text)(int error);
};

/* The one exported function. Null: the library is older than the oldest supported version. */
const struct ofi_table *sublet_ofi_bind(const struct ofi_exports *exports);

/* Shared by the shim's files. */
extern struct ofi_exports ofi_library;

/* Everything that a connection has open. */
struct ofi_link {
    struct fi_info *info;
    struct fi_info *request; /* the pending connection request, until it is answered */
    struct fid_fabric *fabric;
    struct fid_domain *domain;
    struct fid_cq *cq;
    struct fid_eq *eq;   /* MSG */
    struct fid_pep *pep; /* MSG, the side that listens */
    struct fid_av *av;   /* RDM */
    struct fid_ep *ep;   /* MSG: once there is a peer */
    uint64_t peer;
    uint32_t kind;
};

int ofi_open(const struct ofi_query *query, struct ofi_link **link, struct ofi_facts *facts);
void ofi_close(struct ofi_link *link);
int ofi_listen(struct ofi_link *link);
int ofi_name(struct ofi_link *link, void *name, size_t *len_bytes);
int ofi_insert(struct ofi_link *link, const void *name, size_t len_bytes);
int ofi_dial(struct ofi_link *link, const void *name, size_t len_bytes, const uint8_t token[16]);
int ofi_next_event(struct ofi_link *link, struct ofi_event *event);
int ofi_admit(struct ofi_link *link);
int ofi_accept(struct ofi_link *link);
void ofi_refuse(struct ofi_link *link);
void ofi_shutdown(struct ofi_link *link);
uint32_t ofi_api_version(void);
int ofi_matches(const struct ofi_query *query, const struct fi_info *info);
int ofi_find(const struct ofi_query *query, struct fi_info **info);
void ofi_describe(const struct fi_info *info, struct ofi_facts *facts);
int ofi_providers(ofi_visitor *visit, void *context);
int ofi_interfaces(const struct ofi_query *query, ofi_visitor *visit, void *context);

#endif
