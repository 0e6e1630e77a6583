//! Validation of a pod's DNS configuration, host name and host aliases.

use super::super::field::FieldError;
use super::super::names;
use super::fields::Fields;

const MAX_HOSTNAME_LENGTH: usize = 64;
const MAX_NAMESERVERS: usize = 3;
const MAX_SEARCHES: usize = 32;
/// Maximum length of all search domains with the spaces between them.
const MAX_SEARCH_LENGTH: usize = 2048;

pub(super) fn dns_config(spec: &Fields<'_>) {
    let is_none = spec.text("dnsPolicy") == "None";
    let Some(config) = spec.given("dnsConfig") else {
        if is_none {
            let why = "must provide `dnsConfig` when `dnsPolicy` is None";
            spec.required("dnsConfig", why);
        }
        return;
    };
    let servers = config.list("nameservers");
    if is_none && servers.is_empty() {
        let why = "must provide at least one DNS nameserver when `dnsPolicy` is None";
        config.required("nameservers", why);
        return;
    }
    if servers.len() > MAX_NAMESERVERS {
        let why = format!("must not have more than {MAX_NAMESERVERS} nameservers");
        config.invalid("nameservers", servers.to_vec(), why);
    }
    config.check_items("nameservers", names::ip_address);
    let searches = config.list("searches");
    if searches.len() > MAX_SEARCHES {
        let why = format!("must not have more than {MAX_SEARCHES} search paths");
        config.invalid("searches", searches.to_vec(), why);
    }
    if config.texts("searches").collect::<Vec<_>>().join(" ").len() > MAX_SEARCH_LENGTH {
        let why = format!(
            "must not have more than {MAX_SEARCH_LENGTH} characters (including spaces) in the search list"
        );
        config.invalid("searches", searches.to_vec(), why);
    }
    for (index, search) in config
        .texts("searches")
        .enumerate()
        .filter(|(_, search)| *search != ".")
    {
        let search = search.strip_suffix('.').unwrap_or(search);
        for why in names::subdomain_with_underscores(search) {
            let path = config.path("searches").index(index);
            config.push(FieldError::invalid(&path, search, why));
        }
    }
    for option in config.structs("options") {
        if option.text("name").is_empty() {
            option.push(FieldError::required(option.own_path(), "must not be empty"));
        }
    }
}

pub(super) fn hostname_override(spec: &Fields<'_>) {
    const FIELD: &str = "hostnameOverride";
    if !spec.has(FIELD) {
        return;
    }
    for other in ["setHostnameAsFQDN", "hostNetwork"] {
        if spec.get(other) == true {
            spec.forbidden(FIELD, format!("may not be specified when {other} is true"));
        }
    }
    if spec.text(FIELD).len() > MAX_HOSTNAME_LENGTH {
        spec.too_long(FIELD, MAX_HOSTNAME_LENGTH);
    }
    spec.check(FIELD, names::dns1123_subdomain);
}

pub(super) fn host_aliases(spec: &Fields<'_>) {
    for alias in spec.structs("hostAliases") {
        alias.check("ip", names::ip_address);
        alias.check_items("hostnames", names::dns1123_subdomain);
    }
}
