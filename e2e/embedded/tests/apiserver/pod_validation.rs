//! Validation of pods.

use bytes::Bytes;
use http::{Method, Request};
use http_body_util::Full;
use serde_json::{Value, json};
use tower::ServiceExt as _;

use super::{assert_fails, call, mk_pod, mk_server, patch};

const PODS: &str = "/api/v1/namespaces/default/pods";

/// The message of kube-apiserver about errors of a pod.
pub(super) async fn assert_invalid(spec: Value, errors: &[&str]) {
    let server = mk_server(1);
    let response = call(&server, Method::POST, PODS, &mk_pod("p", spec)).await;
    let errors = match errors {
        [error] => (*error).to_owned(),
        errors => format!("[{}]", errors.join(", ")),
    };
    assert_fails(
        response,
        422,
        "Invalid",
        &format!("Pod \"p\" is invalid: {errors}"),
    );
}

async fn assert_container_invalid(mut container: Value, errors: &[&str]) {
    container["name"] = "c".into();
    container["image"] = "i".into();
    let errors: Vec<String> = errors
        .iter()
        .map(|error| format!("spec.containers[0].{error}"))
        .collect();
    let errors: Vec<&str> = errors.iter().map(String::as_str).collect();
    assert_invalid(json!({ "containers": [container] }), &errors).await;
}

#[tokio::test(start_paused = true)]
async fn probes() {
    let cases: [(Value, &[&str]); 8] = [
        (
            json!({ "livenessProbe": {} }),
            &["livenessProbe: Required value: must specify a handler type"],
        ),
        (
            json!({ "livenessProbe": { "exec": {}, "grpc": { "port": 80 } } }),
            &[
                "livenessProbe.exec.command: Required value",
                "livenessProbe.grpc: Forbidden: may not specify more than 1 handler type",
            ],
        ),
        (
            json!({ "startupProbe": { "httpGet": { "port": 0, "scheme": "FTP" }, "successThreshold": 2 } }),
            &[
                "startupProbe.httpGet.port: Invalid value: 0: must be between 1 and 65535, inclusive",
                "startupProbe.httpGet.scheme: Unsupported value: \"FTP\": supported values: \"HTTP\", \"HTTPS\"",
                "startupProbe.successThreshold: Invalid value: 2: must be 1",
            ],
        ),
        (
            json!({ "readinessProbe": { "tcpSocket": { "port": 80 }, "terminationGracePeriodSeconds": 1 } }),
            &[
                "readinessProbe.terminationGracePeriodSeconds: Invalid value: 1: must not be set for readinessProbes",
            ],
        ),
        (
            json!({ "livenessProbe": { "tcpSocket": { "port": 80 }, "terminationGracePeriodSeconds": 0 } }),
            &["livenessProbe.terminationGracePeriodSeconds: Invalid value: 0: must be greater than 0"],
        ),
        (
            json!({ "readinessProbe": { "grpc": { "port": 70000 } } }),
            &["readinessProbe.grpc.port: Invalid value: 70000: must be between 1 and 65535, inclusive"],
        ),
        (
            json!({ "readinessProbe": { "exec": { "command": ["a"] }, "initialDelaySeconds": -1, "periodSeconds": -2 } }),
            &[
                "readinessProbe.initialDelaySeconds: Invalid value: -1: must be greater than or equal to 0",
                "readinessProbe.periodSeconds: Invalid value: -2: must be greater than or equal to 0",
            ],
        ),
        (
            json!({ "livenessProbe": { "exec": { "command": ["a"] }, "successThreshold": -1 } }),
            &[
                "livenessProbe.successThreshold: Invalid value: -1: must be greater than or equal to 0",
                "livenessProbe.successThreshold: Invalid value: -1: must be 1",
            ],
        ),
    ];
    for (container, errors) in cases {
        assert_container_invalid(container, errors).await;
    }
}

#[tokio::test(start_paused = true)]
async fn security_contexts_of_containers() {
    let shown = |capabilities: &str, privileged: &str| {
        format!(
            "securityContext: Invalid value: {{\"Capabilities\":{capabilities},\"Privileged\":{privileged},\
             \"SELinuxOptions\":null,\"WindowsOptions\":null,\"RunAsUser\":null,\"RunAsGroup\":null,\
             \"RunAsNonRoot\":null,\"ReadOnlyRootFilesystem\":null,\"AllowPrivilegeEscalation\":false,\
             \"ProcMount\":null,\"SeccompProfile\":null,\"AppArmorProfile\":null}}: cannot set \
             `allowPrivilegeEscalation` to false and "
        )
    };
    let privileged = shown("null", "true") + "`privileged` to true";
    let admin =
        shown("{\"Add\":[\"CAP_SYS_ADMIN\"],\"Drop\":null}", "null") + "`capabilities.Add` CAP_SYS_ADMIN";
    let cases: [(Value, &[&str]); 5] = [
        (
            json!({ "allowPrivilegeEscalation": false, "privileged": true }),
            &[&privileged],
        ),
        (
            json!({ "allowPrivilegeEscalation": false, "capabilities": { "add": ["CAP_SYS_ADMIN"] } }),
            &[&admin],
        ),
        (
            json!({ "runAsUser": -1, "runAsGroup": 2_147_483_648_i64 }),
            &[
                "securityContext.runAsUser: Invalid value: -1: must be between 0 and 2147483647, inclusive",
                "securityContext.runAsGroup: Invalid value: 2147483648: must be between 0 and 2147483647, inclusive",
            ],
        ),
        (
            json!({ "procMount": "Unmasked" }),
            &[
                "securityContext.procMount: Invalid value: \"Unmasked\": `hostUsers` must be false to use `Unmasked`",
            ],
        ),
        (
            json!({ "seccompProfile": { "type": "Localhost" } }),
            &[
                "securityContext.seccompProfile.localhostProfile: Required value: must be set when seccomp type is \
                 Localhost",
            ],
        ),
    ];
    for (context, errors) in cases {
        assert_container_invalid(json!({ "securityContext": context }), errors).await;
    }
}

#[tokio::test(start_paused = true)]
async fn security_contexts_of_pods() {
    let cases: [(Value, &[&str]); 5] = [
        (
            json!({ "securityContext": { "supplementalGroups": [1, -1], "fsGroupChangePolicy": "Never" } }),
            &[
                "spec.securityContext.supplementalGroups[1]: Invalid value: -1: must be between 0 and 2147483647, \
                 inclusive",
                "spec.securityContext.fsGroupChangePolicy: Unsupported value: \"Never\": supported values: \"Always\", \
                 \"OnRootMismatch\"",
            ],
        ),
        (
            json!({ "shareProcessNamespace": true, "hostPID": true }),
            &[
                "spec.securityContext.shareProcessNamespace: Invalid value: true: ShareProcessNamespace and HostPID \
                 cannot both be enabled",
            ],
        ),
        (
            json!({ "hostNetwork": true, "securityContext": { "sysctls": [
                { "name": "net/ipv4/x", "value": "1" }, { "name": "kernel.sem", "value": "1" },
                { "name": "kernel.sem", "value": "1" }, { "value": "1" },
            ] } }),
            &[
                "spec.securityContext.sysctls[0].name: Invalid value: \"net/ipv4/x\": may not be specified when \
                 'hostNetwork' is true",
                "spec.securityContext.sysctls[2].name: Duplicate value: \"kernel.sem\"",
                "spec.securityContext.sysctls[3].name: Required value",
            ],
        ),
        (
            json!({ "securityContext": { "sysctls": [{ "name": "A", "value": "1" }] } }),
            &[
                "spec.securityContext.sysctls[0].name: Invalid value: \"A\": must have at most 253 characters and match \
                 regex ^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\\./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?$",
            ],
        ),
        (
            json!({ "securityContext": { "seccompProfile": { "type": "Unconfined", "localhostProfile": "x" } } }),
            &[
                "spec.securityContext.seccompProfile.localhostProfile: Invalid value: \
                 {\"Type\":\"Unconfined\",\"LocalhostProfile\":\"x\"}: can only be set when seccomp type is Localhost",
            ],
        ),
    ];
    for (spec, errors) in cases {
        assert_invalid(spec, errors).await;
    }
}

#[tokio::test(start_paused = true)]
async fn affinities() {
    let preferred = "preferredDuringSchedulingIgnoredDuringExecution";
    let required = "requiredDuringSchedulingIgnoredDuringExecution";
    let of_nodes =
        json!({ "weight": 101, "preference": { "matchExpressions": [{ "key": "a", "operator": "Is" }] } });
    let cases: [(Value, &[&str]); 3] = [
        (
            json!({ "nodeAffinity": { preferred: [of_nodes] } }),
            &[
                "spec.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].weight: Invalid value: \
                 101: must be in the range 1-100",
                "spec.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].preference.\
                 matchExpressions[0].operator: Invalid value: \"Is\": not a valid selector operator",
            ],
        ),
        (
            json!({ "podAffinity": { required: [{ "topologyKey": "a", "namespaces": ["A.b"] }] } }),
            &[
                "spec.affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].namespace: Invalid value: \
                 \"A.b\": a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and \
                 must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for \
                 validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')",
            ],
        ),
        (
            json!({ "podAntiAffinity": { preferred: [{ "weight": 0, "podAffinityTerm": {
                "topologyKey": "zone", "labelSelector": { "matchExpressions": [{ "key": "a", "operator": "In" }] },
            } }] } }),
            &[
                "spec.affinity.podAntiAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].weight: Invalid value: \
                 0: must be in the range 1-100",
                "spec.affinity.podAntiAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].podAffinityTerm.\
                 labelSelector.matchExpressions[0].values: Required value: must be specified when `operator` is 'In' \
                 or 'NotIn'",
            ],
        ),
    ];
    for (affinity, errors) in cases {
        assert_invalid(json!({ "affinity": affinity }), errors).await;
    }
}

#[tokio::test(start_paused = true)]
async fn topology_spread_constraints() {
    let spread = |skew: i64, action: &str| json!({ "maxSkew": skew, "topologyKey": "zone", "whenUnsatisfiable": action });
    let mut domains = spread(1, "ScheduleAnyway");
    domains["minDomains"] = 0.into();
    domains["nodeTaintsPolicy"] = "Respect".into();
    let cases: [(Value, &[&str]); 4] = [
        (
            json!([{ "topologyKey": "", "whenUnsatisfiable": "Never" }]),
            &[
                "spec.topologySpreadConstraints[0].maxSkew: Invalid value: 0: must be greater than zero",
                "spec.topologySpreadConstraints[0].topologyKey: Required value: can not be empty",
                "spec.topologySpreadConstraints[0].whenUnsatisfiable: Unsupported value: \"Never\": supported values: \
                 \"DoNotSchedule\", \"ScheduleAnyway\"",
            ],
        ),
        (
            json!([spread(1, "DoNotSchedule"), spread(2, "DoNotSchedule")]),
            &[
                "spec.topologySpreadConstraints[0].{topologyKey, whenUnsatisfiable}: Duplicate value: \"{zone, \
                 DoNotSchedule}\"",
            ],
        ),
        (
            json!([domains]),
            &[
                "spec.topologySpreadConstraints[0].minDomains: Invalid value: 0: must be greater than zero",
                "spec.topologySpreadConstraints[0].minDomains: Invalid value: 0: can only use minDomains if \
                 whenUnsatisfiable=DoNotSchedule, not ScheduleAnyway",
                "spec.topologySpreadConstraints[0].nodeTaintsPolicy: Unsupported value: \"Respect\": supported values: \
                 \"Honor\", \"Ignore\"",
            ],
        ),
        (
            json!([{ "maxSkew": -1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule" }]),
            &["spec.topologySpreadConstraints[0].maxSkew: Invalid value: -1: must be greater than zero"],
        ),
    ];
    for (constraints, errors) in cases {
        assert_invalid(json!({ "topologySpreadConstraints": constraints }), errors).await;
    }
}

#[tokio::test(start_paused = true)]
async fn network_and_claims() {
    let cases: [(Value, &[&str]); 6] = [
        (
            json!({ "dnsPolicy": "None", "dnsConfig": {} }),
            &[
                "spec.dnsConfig.nameservers: Required value: must provide at least one DNS nameserver when `dnsPolicy` is \
                 None",
            ],
        ),
        (
            json!({ "dnsConfig": { "nameservers": ["10.0.0.1", "10.0.0.2", "10.0.0.03", "x"], "options": [{}] } }),
            &[
                "spec.dnsConfig.nameservers: Invalid value: [\"10.0.0.1\",\"10.0.0.2\",\"10.0.0.03\",\"x\"]: must not have \
                 more than 3 nameservers",
                "spec.dnsConfig.nameservers[2]: Invalid value: \"10.0.0.03\": must not have leading 0s",
                "spec.dnsConfig.nameservers[3]: Invalid value: \"x\": must be a valid IP address, (e.g. 10.9.8.7 or \
                 2001:db8::ffff)",
                "spec.dnsConfig.options[0]: Required value: must not be empty",
            ],
        ),
        (
            json!({ "dnsConfig": { "searches": [".", "_a.b_c.d.", "A"] } }),
            &[
                "spec.dnsConfig.searches[2]: Invalid value: \"A\": a lowercase RFC 1123 subdomain must consist of lower \
                 case alphanumeric characters, '_', '-' or '.', and must start and end with an alphanumeric character \
                 (e.g. 'example.com', regex used for validation is \
                 '_?[a-z0-9]([-_a-z0-9]*[a-z0-9])?(\\._?[a-z0-9]([-_a-z0-9]*[a-z0-9])?)*')",
            ],
        ),
        (
            json!({ "hostAliases": [{ "ip": "::ffff:10.0.0.1", "hostnames": ["a"] }, { "ip": "10.0.0.1" }] }),
            &[
                "spec.hostAliases[0].ip: Invalid value: \"::ffff:10.0.0.1\": must not be an IPv4-mapped IPv6 address",
            ],
        ),
        (
            json!({ "readinessGates": [{ "conditionType": "a b" }] }),
            &[
                "spec.readinessGates[0].conditionType: Invalid value: \"a b\": name part must consist of alphanumeric \
                 characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or \
                 'my.name',  or '123-abc', regex used for validation is \
                 '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')",
            ],
        ),
        (
            json!({ "resourceClaims": [{ "name": "r" }, { "name": "r", "resourceClaimName": "x" }] }),
            &[
                "spec.resourceClaims[0]: Invalid value: \
                 {\"Name\":\"r\",\"ResourceClaimName\":null,\"ResourceClaimTemplateName\":null}: must specify one of: \
                 `resourceClaimName`, `resourceClaimTemplateName`",
                "spec.resourceClaims[1].name: Duplicate value: \"r\"",
            ],
        ),
    ];
    for (spec, errors) in cases {
        assert_invalid(spec, errors).await;
    }
}

#[tokio::test(start_paused = true)]
async fn windows_options() {
    let user = |name: &str| json!({ "runAsUserName": name });
    let long = "u".repeat(105);
    let too_long = format!(
        "runAsUserName: Invalid value: \"{long}\": runAsUserName's User length must not be longer than 104 characters"
    );
    let cases: [(Value, &[&str]); 7] = [
        (
            json!({ "gmsaCredentialSpecName": "a..b", "gmsaCredentialSpec": "" }),
            &[
                "gmsaCredentialSpecName: Invalid value: \"a..b\": a lowercase RFC 1123 subdomain must consist of lower \
                 case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. \
                 'example.com', regex used for validation is \
                 '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')",
                "gmsaCredentialSpec: Invalid value: \"\": gmsaCredentialSpec cannot be an empty string",
            ],
        ),
        (
            user(""),
            &["runAsUserName: Invalid value: \"\": runAsUserName cannot be an empty string"],
        ),
        (
            user("a\\b\\c"),
            &[
                "runAsUserName: Invalid value: \"a\\\\b\\\\c\": runAsUserName cannot contain more than one backslash",
            ],
        ),
        (
            user("a\tb"),
            &["runAsUserName: Invalid value: \"a\\tb\": runAsUserName cannot contain control characters"],
        ),
        (
            user("\\. ."),
            &[
                "runAsUserName: Invalid value: \"\\\\. .\": runAsUserName's Domain doesn't match the NetBios nor the DNS \
                 format",
                "runAsUserName: Invalid value: \"\\\\. .\": runAsUserName's User cannot contain only periods or spaces",
            ],
        ),
        (
            user("a_b\\u@v"),
            &[
                "runAsUserName: Invalid value: \"a_b\\\\u@v\": runAsUserName's User cannot contain the following \
                 characters: \"/\\:;|=,+*?<>@[]",
            ],
        ),
        (user(&long), &[&too_long]),
    ];
    for (options, errors) in cases {
        let errors: Vec<String> = errors
            .iter()
            .map(|error| format!("spec.securityContext.windowsOptions.{error}"))
            .collect();
        let errors: Vec<&str> = errors.iter().map(String::as_str).collect();
        assert_invalid(
            json!({ "securityContext": { "windowsOptions": options } }),
            &errors,
        )
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn processes_of_the_host() {
    let container = |name: &str, options: Value| json!({ "name": name, "image": "i", "securityContext": { "windowsOptions": options } });
    let on_host = json!({ "hostProcess": true });
    let cases: [(Value, &[&str]); 2] = [
        (
            json!({ "containers": [container("c", on_host.clone()), container("d", json!({}))] }),
            &[
                "spec: Invalid value: \"\": If pod contains any hostProcess containers then all containers must be \
                 HostProcess containers",
                "spec.hostNetwork: Invalid value: false: hostNetwork must be true if pod contains any hostProcess \
                 containers",
            ],
        ),
        (
            json!({
                "securityContext": { "windowsOptions": on_host },
                "hostNetwork": true,
                "containers": [container("c", json!({ "hostProcess": false })), container("d", json!({}))],
            }),
            &[
                "spec.containers[0].securityContext.windowsOptions.hostProcess: Invalid value: false: pod hostProcess \
                 value must be identical if both are specified, was true",
                "spec: Invalid value: \"\": If pod contains any hostProcess containers then all containers must be \
                 HostProcess containers",
            ],
        ),
    ];
    for (spec, errors) in cases {
        assert_invalid(spec, errors).await;
    }
}

#[tokio::test(start_paused = true)]
async fn operating_systems_and_user_namespaces() {
    let container = json!({ "name": "c", "image": "i", "securityContext": {
        "privileged": true, "windowsOptions": { "runAsUserName": "u" },
    } });
    let context = json!({ "runAsUser": 1, "windowsOptions": { "runAsUserName": "u" } });
    let cases: [(Value, &[&str]); 5] = [
        (json!({ "os": {} }), &["spec.os.name: Required value"]),
        (
            json!({ "os": { "name": "plan9" } }),
            &["spec.os: Unsupported value: \"plan9\": supported values: \"linux\", \"windows\""],
        ),
        (
            json!({ "os": { "name": "linux" }, "securityContext": context, "containers": [container] }),
            &[
                "spec.securityContext.windowsOptions: Forbidden: windows options cannot be set for a linux pod",
                "spec.containers[0].securityContext.windowsOptions: Forbidden: windows options cannot be set for a linux pod",
            ],
        ),
        (
            json!({
                "os": { "name": "windows" }, "hostPID": true, "securityContext": context, "containers": [container],
            }),
            &[
                "spec.hostPID: Forbidden: cannot be set for a windows pod",
                "spec.securityContext.runAsUser: Forbidden: cannot be set for a windows pod",
                "spec.containers[0].securityContext.privileged: Forbidden: cannot be set for a windows pod",
            ],
        ),
        (
            json!({ "hostUsers": false, "hostNetwork": true, "hostPID": true, "hostIPC": true }),
            &[
                "spec.hostNetwork: Forbidden: when `hostUsers` is false",
                "spec.HostPID: Forbidden: when `hostUsers` is false",
                "spec.HostIPC: Forbidden: when `hostUsers` is false",
            ],
        ),
    ];
    for (spec, errors) in cases {
        assert_invalid(spec, errors).await;
    }
}

#[tokio::test(start_paused = true)]
async fn restart_policies() {
    let exit_codes = |operator: &str| json!({ "operator": operator, "values": [1] });
    let rules = vec![json!({ "action": "Restart", "exitCodes": exit_codes("In") }); 21];
    let cases: [(Value, &[&str]); 4] = [
        (
            json!({ "restartPolicy": "Sometimes" }),
            &[
                "restartPolicy: Unsupported value: \"Sometimes\": supported values: \"Always\", \"Never\", \"OnFailure\"",
            ],
        ),
        (
            json!({ "restartPolicyRules": [{ "action": "Stop", "exitCodes": exit_codes("Is") }] }),
            &[
                "restartPolicy: Required value: must specify restartPolicy when restart rules are used",
                "restartPolicyRules[0].action: Unsupported value: \"Stop\": supported values: \"Restart\", \
                 \"RestartAllContainers\"",
                "restartPolicyRules[0].exitCodes.operator: Unsupported value: \"Is\": supported values: \"In\", \"NotIn\"",
            ],
        ),
        (
            json!({ "restartPolicy": "Always", "restartPolicyRules": [{ "action": "Restart" }] }),
            &["restartPolicyRules[0].exitCodes: Required value: must be specified"],
        ),
        (
            json!({ "restartPolicy": "Never", "restartPolicyRules": rules }),
            &["restartPolicyRules: Too many: 21: must have at most 20 items"],
        ),
    ];
    for (container, errors) in cases {
        assert_container_invalid(container, errors).await;
    }
    let init = json!({ "name": "x", "image": "i", "restartPolicyRules": [{ "action": "Stop" }] });
    let why = "spec.initContainers[0].restartPolicy: Required value: must specify restartPolicy when restart rules are used";
    assert_invalid(json!({ "initContainers": [init] }), &[why]).await;
}

#[tokio::test(start_paused = true)]
async fn resize_policies() {
    let entry = |resource: &str, policy: &str| json!({ "resourceName": resource, "restartPolicy": policy });
    let cases: [(Value, &[&str]); 3] = [
        (
            json!([entry("cpu", "NotRequired"), entry("cpu", "RestartContainer")]),
            &["resizePolicy[1]: Duplicate value: \"cpu\""],
        ),
        (
            json!([entry("disk", "Never")]),
            &[
                "resizePolicy: Unsupported value: \"disk\": supported values: \"cpu\", \"memory\"",
                "resizePolicy: Unsupported value: \"Never\": supported values: \"NotRequired\", \"RestartContainer\"",
            ],
        ),
        (
            json!([{ "restartPolicy": "NotRequired" }]),
            &["resizePolicy: Required value"],
        ),
    ];
    for (policies, errors) in cases {
        assert_container_invalid(json!({ "resizePolicy": policies }), errors).await;
    }
    let restarts = json!([entry("cpu", "RestartContainer")]);
    let spec = json!({
        "restartPolicy": "Never",
        "containers": [{ "name": "c", "image": "i", "resizePolicy": restarts }],
        "initContainers": [{ "name": "x", "image": "i", "resizePolicy": restarts }],
    });
    let errors = [
        "spec.containers[0].resizePolicy: Invalid value: \"RestartContainer\": must be 'NotRequired' when pod \
         `restartPolicy` is 'Never'",
        "spec.initContainers[0].resizePolicy: Invalid value: \"RestartContainer\": must be 'NotRequired' when pod \
         `restartPolicy` is 'Never'",
        "spec.initContainers[0].resizePolicy[0].restartPolicy: Invalid value: \"RestartContainer\": must not be set to \
         'RestartContainer' for non-sidecar initContainers",
    ];
    assert_invalid(spec, &errors).await;
}

#[tokio::test(start_paused = true)]
async fn app_armor_profiles() {
    let cases = [
        (
            json!({}),
            "type: Required value: type is required when appArmorProfile is set",
        ),
        (
            json!({ "type": "Other" }),
            "type: Unsupported value: \"Other\": supported values: \"Localhost\", \"RuntimeDefault\", \"Unconfined\"",
        ),
        (
            json!({ "type": "Localhost" }),
            "localhostProfile: Required value: must be set when AppArmor type is Localhost",
        ),
        (
            json!({ "type": "Localhost", "localhostProfile": "p " }),
            "localhostProfile: Invalid value: \"p \": must not be padded with whitespace",
        ),
        (
            json!({ "type": "Unconfined", "localhostProfile": "p" }),
            "localhostProfile: Invalid value: \"p\": can only be set when AppArmor type is Localhost",
        ),
    ];
    for (profile, error) in cases {
        let context = json!({ "securityContext": { "appArmorProfile": profile } });
        let of_pod = format!("spec.securityContext.appArmorProfile.{error}");
        assert_invalid(context.clone(), &[&of_pod]).await;
        assert_container_invalid(context, &[&format!("securityContext.appArmorProfile.{error}")]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn app_armor_annotations() {
    let server = mk_server(1);
    let annotated = |profile: &str, context: Value| {
        json!({
            "metadata": { "name": "p", "annotations": { "container.apparmor.security.beta.kubernetes.io/c": profile } },
            "spec": { "containers": [{ "name": "c", "image": "i", "securityContext": context }] },
        })
    };
    let unconfined = json!({ "appArmorProfile": { "type": "Unconfined" } });
    let localhost = json!({ "appArmorProfile": { "type": "Localhost", "localhostProfile": "p" } });
    let cases = [
        (
            annotated("x", json!({})),
            "metadata.annotations[container.apparmor.security.beta.kubernetes.io/c]: Invalid value: \"x\": invalid AppArmor \
             profile name: \"x\"",
        ),
        (
            annotated("runtime/default", unconfined.clone()),
            "spec.containers[0].securityContext.appArmorProfile.type: Forbidden: apparmor type in annotation and field must \
             match",
        ),
        (
            annotated("localhost/q", localhost.clone()),
            "spec.containers[0].securityContext.appArmorProfile.localhostProfile: Forbidden: apparmor profile in annotation \
             and field must match",
        ),
    ];
    for (pod, error) in cases {
        let response = call(&server, Method::POST, PODS, &pod).await;
        assert_fails(
            response,
            422,
            "Invalid",
            &format!("Pod \"p\" is invalid: {error}"),
        );
    }
    let (code, pod) = call(
        &server,
        Method::POST,
        PODS,
        &annotated("localhost/p", Value::Null),
    )
    .await;
    assert_eq!(code, 201, "{pod}");
    assert_eq!(pod["spec"]["containers"][0]["securityContext"], localhost);
    let removal = json!({ "metadata": { "annotations": null } });
    for path in [format!("{PODS}/p"), format!("{PODS}/p/status")] {
        assert_fails(
            patch(&server, &path, "merge", &removal).await,
            422,
            "Invalid",
            "Pod \"p\" is invalid: metadata.annotations[container.apparmor.security.beta.kubernetes.io/c]: Forbidden: may not \
             remove or update AppArmor annotations",
        );
    }
}

#[tokio::test(start_paused = true)]
async fn label_keys() {
    let required = "requiredDuringSchedulingIgnoredDuringExecution";
    let term = |mut fields: Value| {
        fields["topologyKey"] = "zone".into();
        json!({ "affinity": { "podAffinity": { required: [fields] } } })
    };
    let twice = json!([{ "key": "a", "operator": "Exists" }, { "key": "a", "operator": "Exists" }]);
    let cases: [(Value, &[&str]); 4] = [
        (
            term(json!({ "matchLabelKeys": ["a"], "mismatchLabelKeys": ["b", "a"] })),
            &[
                "matchLabelKeys: Forbidden: must not be specified when labelSelector is not set",
                "mismatchLabelKeys: Forbidden: must not be specified when labelSelector is not set",
                "matchLabelKeys[0]: Invalid value: \"a\": exists in both matchLabelKeys and mismatchLabelKeys",
            ],
        ),
        (
            term(json!({ "labelSelector": {}, "mismatchLabelKeys": [""] })),
            &[
                "mismatchLabelKeys[0]: Invalid value: \"\": name part must be non-empty",
                "mismatchLabelKeys[0]: Invalid value: \"\": name part must consist of alphanumeric characters, '-', '_' or \
                 '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', \
                 regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')",
            ],
        ),
        (
            term(json!({ "labelSelector": { "matchExpressions": twice }, "matchLabelKeys": ["b", "a"] })),
            &["[1]: Invalid value: \"a\": exists in both matchLabelKeys and labelSelector"],
        ),
        (
            json!({ "topologySpreadConstraints": [{
                "maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule", "matchLabelKeys": ["a"],
            }] }),
            &["matchLabelKeys: Forbidden: must not be specified when labelSelector is not set"],
        ),
    ];
    for (spec, errors) in cases {
        let owner = if spec["affinity"].is_null() {
            "topologySpreadConstraints"
        } else {
            "affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution"
        };
        let path = |error: &&str| match error.strip_prefix('[') {
            Some(_) => format!("spec.{owner}[0]{error}"),
            None => format!("spec.{owner}[0].{error}"),
        };
        let errors: Vec<String> = errors.iter().map(path).collect();
        let errors: Vec<&str> = errors.iter().map(String::as_str).collect();
        assert_invalid(spec, &errors).await;
    }
}

#[tokio::test(start_paused = true)]
async fn resources_of_containers() {
    let cases: [(Value, &[&str]); 5] = [
        (
            json!({ "requests": { "disk": "1" } }),
            &[
                "requests[disk]: Invalid value: \"disk\": must be a standard resource type or fully qualified",
                "requests[disk]: Invalid value: \"disk\": must be a standard resource for containers",
            ],
        ),
        (
            json!({ "requests": { "requests.example.com/a": "1" } }),
            &[
                "requests[requests.example.com/a]: Invalid value: \"requests.example.com/a\": doesn't follow extended \
                 resource name standard",
                "limits: Required value: Limit must be set for non overcommitable resources",
            ],
        ),
        (
            json!({ "requests": { "example.com/a": "1" }, "limits": { "example.com/a": "2" } }),
            &["requests: Invalid value: \"1\": must be equal to example.com/a limit of 2"],
        ),
        (
            json!({ "limits": { "hugepages-2Mi": "1Mi" } }),
            &[
                "limits[hugepages-2Mi]: Invalid value: \"1Mi\": 1Mi is not positive integer multiple of hugepages-2Mi",
                "requests[hugepages-2Mi]: Invalid value: \"1Mi\": 1Mi is not positive integer multiple of hugepages-2Mi",
                "HugePages",
            ],
        ),
        (
            json!({ "claims": [{ "name": "r" }, { "name": "r" }] }),
            &[
                "claims[0]: Not found: \"r\": must be one of the names in pod.spec.resourceClaims which is empty",
                "claims[1]: Duplicate value: \"r\"",
                "claims[1]: Not found: \"r\": must be one of the names in pod.spec.resourceClaims which is empty",
            ],
        ),
    ];
    for (resources, errors) in cases {
        let path = |error: &&str| match *error {
            "HugePages" => "resources: Forbidden: HugePages require cpu or memory".to_owned(),
            error => format!("resources.{error}"),
        };
        let errors: Vec<String> = errors.iter().map(path).collect();
        let errors: Vec<&str> = errors.iter().map(String::as_str).collect();
        assert_container_invalid(json!({ "resources": resources }), &errors).await;
    }
}

#[tokio::test(start_paused = true)]
async fn resources_of_pods() {
    let container =
        |kind: &str, amounts: Value| json!({ "name": "c", "image": "i", "resources": { kind: amounts } });
    let cases: [(Value, &[&str]); 6] = [
        (
            json!({ "os": { "name": "windows" }, "resources": {} }),
            &["spec.resources: Forbidden: may not be set for a windows pod"],
        ),
        (
            json!({ "resources": { "claims": [{ "name": "r" }] } }),
            &[
                "spec.resources.claims: Forbidden: claims may not be set for Resources at pod-level",
                "spec.resources.claims[0]: Not found: \"r\": must be one of the names in pod.spec.resourceClaims which is \
                 empty",
            ],
        ),
        (
            json!({ "resources": { "requests": { "storage": "1" } } }),
            &[
                "spec.resources.requests[storage]: Unsupported value: \"storage\": supported values: \"cpu\", \"hugepages-\", \
                 \"memory\"",
            ],
        ),
        (
            json!({
                "resources": { "requests": { "cpu": "1" } },
                "containers": [container("requests", json!({ "cpu": "600m" }))],
                "initContainers": [
                    { "name": "s", "image": "i", "restartPolicy": "Always", "resources": { "requests": { "cpu": "500m" } } },
                ],
            }),
            &[
                "spec.resources.requests[cpu]: Invalid value: \"1\": must be greater than or equal to aggregate container \
                 requests of 1100m",
            ],
        ),
        (
            json!({
                "resources": { "limits": { "cpu": "1" } },
                "containers": [container("limits", json!({ "cpu": "2" }))],
            }),
            &[
                "spec.resources.requests: Invalid value: \"2\": must be less than or equal to cpu limit of 1",
                "spec.resources.containers[0][cpu].limits: Invalid value: \"2\": must be less than or equal to pod limits of 1",
            ],
        ),
        (
            json!({ "overhead": { "disk": "1" } }),
            &[
                "spec.overhead.limits[disk]: Invalid value: \"disk\": must be a standard resource type or fully qualified",
                "spec.overhead.limits[disk]: Invalid value: \"disk\": must be a standard resource for containers",
            ],
        ),
    ];
    for (spec, errors) in cases {
        assert_invalid(spec, errors).await;
    }
}

#[tokio::test(start_paused = true)]
async fn host_names_policies_and_volumes() {
    let volume = |source: Value| json!({ "volumes": [{ "name": "v", "image": source }] });
    let variable =
        json!({ "name": "A", "valueFrom": { "fileKeyRef": { "volumeName": "v", "path": "p", "key": "k" } } });
    let container = json!({ "name": "c", "image": "i", "env": [variable] });
    let cases: [(Value, &[&str]); 5] = [
        (
            json!({ "hostnameOverride": "x".repeat(65), "setHostnameAsFQDN": true, "hostNetwork": true }),
            &[
                "spec.hostnameOverride: Forbidden: may not be specified when setHostnameAsFQDN is true",
                "spec.hostnameOverride: Forbidden: may not be specified when hostNetwork is true",
                "spec.hostnameOverride: Too long: may not be more than 64 bytes",
            ],
        ),
        (
            json!({ "securityContext": { "seLinuxChangePolicy": "MountOption" } }),
            &[
                "spec.securityContext.seLinuxChangePolicy: Unsupported value: \"MountOption\": supported values: \"Recursive\"",
            ],
        ),
        (
            volume(json!({})),
            &["spec.volumes[0].image.reference: Required value"],
        ),
        (
            volume(json!({ "reference": "i", "pullPolicy": "Often" })),
            &[
                "spec.volumes[0].image.pullPolicy: Unsupported value: \"Often\": supported values: \"Always\", \
                 \"IfNotPresent\", \"Never\"",
            ],
        ),
        (
            json!({ "containers": [container] }),
            &["spec.containers[0].env[0].valueFrom.fileKeyRef.volumeName: Not found: \"v\""],
        ),
    ];
    for (spec, errors) in cases {
        assert_invalid(spec, errors).await;
    }
}

#[tokio::test(start_paused = true)]
async fn repeated_warning_is_sent_once() {
    let container = json!({ "name": "c", "image": "i" });
    let pod = json!({
        "metadata": {
            "name": "p",
            "annotations": { "container.apparmor.security.beta.kubernetes.io/c": "runtime/default" },
        },
        "spec": { "containers": [container, container] },
    });
    let request = Request::post(PODS)
        .header("content-type", "application/json")
        .body(Full::new(Bytes::from(pod.to_string())))
        .unwrap();
    let response = mk_server(1).oneshot(request).await.unwrap();
    assert_eq!(response.headers().get_all("warning").iter().count(), 1);
}
