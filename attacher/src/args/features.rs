//! `--feature-gates`, in the Go sidecar's syntax.

use std::str::FromStr;

use super::go_style;

/// One `--feature-gates`: pairs of gate and setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Gates(Vec<(String, bool)>);

const ERROR_CODES: &str = "MutableCSINodeAllocatableCount";
const RELEASE_LEASE: &str = "ReleaseLeaderElectionOnExit";
const ALL_ALPHA: &str = "AllAlpha";
const ALL_BETA: &str = "AllBeta";

/// Gates of Kubernetes' API server library, which external-attacher v4.13 accepts because of an import and ignores.
const WITHOUT_MEANING: &[&str] = &[
    "APIResponseCompression",
    "APIServerIdentity",
    "APIServerWebhookAuthenticationToken",
    "APIServingWithRoutine",
    "AllowParsingUserUIDFromCertAuth",
    "AllowUnsafeMalformedObjectDeletion",
    "CBORServingAndStorage",
    "ComponentFlagz",
    "ComponentStatusz",
    "ConcurrentWatchObjectDecode",
    "ConsistentListFromCacheSkipTimeoutFallback",
    "ConstrainedImpersonation",
    "CoordinatedLeaderElection",
    "DeclarativeValidationBeta",
    "DetectCacheInconsistency",
    "EtcdRangeStream",
    "ExcludeAdmissionWebhookVirtualResources",
    "ListFromCacheSnapshot",
    "ManifestBasedAdmissionControlConfig",
    "NativeHistograms",
    "OpenAPIEnums",
    "RemoteRequestHeaderUID",
    "ShardedListAndWatch",
    "SizeBasedListCostEstimate",
    "StorageVersionAPI",
    "StorageVersionHash",
    "StructuredAuthenticationConfigurationEgressSelector",
    "StructuredAuthenticationConfigurationJWKSMetrics",
    "TokenRequestServiceAccountUIDValidation",
    "UnauthenticatedHTTP2DOSMitigation",
    "UnknownVersionInteroperabilityProxy",
    "WatchList",
    "WatchListCompression",
    "WebhookRoundTripLoadBalancing",
];

// === impl Gates ===

impl FromStr for Gates {
    type Err = String;

    fn from_str(value: &str) -> Result<Self, Self::Err> {
        let pairs = value.split(',').map(str::trim).filter(|pair| !pair.is_empty());
        let read = |pair: &str| {
            let (gate, value) = pair
                .split_once('=')
                .ok_or_else(|| format!("{pair:?} is not of the form Gate=true or Gate=false"))?;
            let gate = gate.trim().to_owned();
            if !is_known(&gate) {
                return Err(format!("unrecognized feature gate: {gate}"));
            }
            let on = go_style::boolean(value.trim()).map_err(|problem| format!("gate {gate}: {problem}"))?;
            Ok((gate, on))
        };
        pairs.map(read).collect::<Result<_, _>>().map(Self)
    }
}

/// Gates that the Go sidecar's `--help` lists, and its hidden one.
pub(crate) fn known() -> impl Iterator<Item = &'static str> {
    [ERROR_CODES, RELEASE_LEASE, ALL_ALPHA, ALL_BETA]
        .into_iter()
        .chain(WITHOUT_MEANING.iter().copied())
}

fn is_known(gate: &str) -> bool {
    known().any(|known| known == gate)
}

/// The setting of MutableCSINodeAllocatableCount, by several `--feature-gates`: a later pair wins. ReleaseLeaderElectionOnExit has no
/// effect, as the lease is always released.
pub(super) fn error_codes(gates: &[Gates]) -> bool {
    let mut last_first = gates.iter().flat_map(|gates| &gates.0).rev();
    last_first
        .find(|(gate, _)| gate == ERROR_CODES)
        .is_none_or(|(_, on)| *on)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_feature_gates_like_the_go_sidecar() {
        let features = |values: &[&str]| {
            let gates: Result<Vec<Gates>, _> = values.iter().map(|value| value.parse()).collect();
            gates.map(|gates| error_codes(&gates))
        };
        for (values, error_codes) in [
            (&[][..], true),
            (&[""], true),
            (&["WatchList=true,"], true),
            (&["MutableCSINodeAllocatableCount=false"], false),
            (
                &[
                    "MutableCSINodeAllocatableCount=false",
                    "MutableCSINodeAllocatableCount=true",
                ],
                true,
            ),
            (&[" ReleaseLeaderElectionOnExit=T , AllBeta=0"], true),
            (&["AllAlpha=true", "ReleaseLeaderElectionOnExit=false"], true),
            (&["MutableCSINodeAllocatableCount=false", "AllAlpha=false"], false),
        ] {
            assert_eq!(features(values), Ok(error_codes), "{values:?}");
        }
        for (value, error) in [
            ("Foo=true", "unrecognized feature gate: Foo"),
            (
                "AllAlpha",
                r#""AllAlpha" is not of the form Gate=true or Gate=false"#,
            ),
            ("AllAlpha=x", r#"gate AllAlpha: "x" must be true or false"#),
        ] {
            assert_eq!(features(&[value]).unwrap_err(), error);
        }
    }
}
