//! Counters and gauges of Kubernetes' components, read from Prometheus' text format.

use std::collections::BTreeMap;

use anyhow::{Context, Result};

/// The counter of completed requests.
const REQUESTS: &str = "apiserver_request_total";

/// A counter or gauge with its labels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Series {
    /// Name of the metric.
    pub name: &'static str,
    /// All labels.
    pub labels: Labels,
}

/// Values of labels by name.
type Labels = BTreeMap<String, String>;

/// Completed requests of the API server by verb, resource and code.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Metrics {
    requests: BTreeMap<Request, u64>,
}

/// The API server's labels of a request.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Request {
    /// `GET`, `LIST`, `WATCH`, `POST`, `PUT`, `PATCH`, `APPLY`, `DELETE`, ...
    pub verb: String,
    /// Plural of the kind, such as `volumeattachments`.
    pub resource: String,
    /// Subresource, such as `status`; empty for the object itself.
    pub subresource: String,
    /// HTTP status.
    pub code: String,
}

// === impl Series ===

impl Series {
    /// The metric with this name and these labels.
    pub fn new<const N: usize>(name: &'static str, labels: [(&str, &str); N]) -> Self {
        Self {
            name,
            labels: labels
                .map(|(label, value)| (label.to_owned(), value.to_owned()))
                .into(),
        }
    }

    /// The value in the text of `/metrics`; 0 if the text lacks the series.
    ///
    /// # Errors
    /// A sample of the metric is malformed, or its value is not a whole number.
    pub fn value(&self, text: &str) -> Result<u64> {
        let samples = samples(text, |name| name == self.name)?;
        let sample = samples.into_iter().find(|(labels, _)| *labels == self.labels);
        Ok(sample.map_or(0, |(_, value)| value))
    }
}

// === impl Metrics ===

impl Metrics {
    /// Parses the counters in the text of `/metrics`.
    pub fn parse(text: &str) -> Result<Self> {
        let mut requests = BTreeMap::new();
        for (mut labels, count) in samples(text, |name| name == REQUESTS)? {
            let mut label = |name: &str| labels.remove(name).unwrap_or_default();
            let request = Request {
                verb: label("verb"),
                resource: label("resource"),
                subresource: label("subresource"),
                code: label("code"),
            };
            *requests.entry(request).or_default() += count;
        }
        Ok(Self { requests })
    }

    /// Number of requests with any code.
    pub fn requests(&self, verb: &str, resource: &str, subresource: &str) -> u64 {
        let asked = |request: &&Request| {
            request.verb == verb && request.resource == resource && request.subresource == subresource
        };
        self.requests
            .iter()
            .filter(|(request, _)| asked(request))
            .map(|(_, count)| count)
            .sum()
    }

    /// Every kind of request and its count.
    pub fn iter(&self) -> impl Iterator<Item = (&Request, u64)> {
        self.requests.iter().map(|(request, count)| (request, *count))
    }

    /// The increase of the counters from `earlier` to `self`. A counter that decreased belongs to a restarted
    /// API server, so its whole value is new.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let new = self.requests.iter().filter_map(|(request, count)| {
            let before = earlier.requests.get(request).copied().unwrap_or(0);
            let new = count.checked_sub(before).unwrap_or(*count);
            (new > 0).then(|| (request.clone(), new))
        });
        Self {
            requests: new.collect(),
        }
    }
}

// === functions ===

/// The samples of the metrics whose name `is_wanted`.
fn samples(text: &str, is_wanted: impl Fn(&str) -> bool) -> Result<Vec<(Labels, u64)>> {
    let name = |line: &&str| line.split(['{', ' ', '\t']).next().is_some_and(&is_wanted);
    text.lines()
        .filter(name)
        .map(|line| parse_sample(line).with_context(|| format!("parse the metric {line:?}")))
        .collect()
}

/// `name{label="value",...} number timestamp`, of which labels and timestamp are optional.
fn parse_sample(line: &str) -> Option<(Labels, u64)> {
    let mut labels = Labels::new();
    let (_, mut rest) = line.split_at(line.find(['{', ' ', '\t'])?);
    if let Some(inner) = rest.strip_prefix('{') {
        rest = inner;
        loop {
            rest = rest.trim_start_matches([',', ' ']);
            if let Some(value) = rest.strip_prefix('}') {
                rest = value;
                break;
            }
            let (name, quoted) = rest.split_once("=\"")?;
            let (value, after) = parse_quoted(quoted)?;
            labels.insert(name.to_owned(), value);
            rest = after;
        }
    }
    Some((labels, parse_count(rest.split_ascii_whitespace().next()?)?))
}

/// A label's value up to its closing quote, and the text after it.
fn parse_quoted(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut chars = text.char_indices();
    while let Some((at, char)) = chars.next() {
        match char {
            '"' => return Some((value, &text[at + 1..])),
            '\\' => match chars.next()?.1 {
                'n' => value.push('\n'),
                escaped => value.push(escaped),
            },
            char => value.push(char),
        }
    }
    None
}

/// A count, which is printed with an exponent when it is large: `1.234567e+06`.
fn parse_count(text: &str) -> Option<u64> {
    let (mantissa, exponent) = match text.split_once('e') {
        Some((mantissa, exponent)) => (mantissa, exponent.parse::<usize>().ok()?),
        None => (text, 0),
    };
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let fraction = fraction.trim_end_matches('0');
    if fraction.len() > exponent {
        return None;
    }
    format!("{whole}{fraction:0<exponent$}").parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"
# HELP apiserver_request_total [STABLE] Counter of apiserver requests.
# TYPE apiserver_request_total counter
apiserver_request_total{code="200",component="apiserver",dry_run="",group="storage.k8s.io",resource="volumeattachments",scope="resource",subresource="status",verb="PATCH",version="v1"} 2000
apiserver_request_total{code="200",component="apiserver",dry_run="All",group="storage.k8s.io",resource="volumeattachments",scope="resource",subresource="status",verb="PATCH",version="v1"} 1
apiserver_request_total{code="404",component="apiserver",dry_run="",group="storage.k8s.io",resource="volumeattachments",scope="resource",subresource="status",verb="PATCH",version="v1"} 3
apiserver_request_total{code="200",component="apiserver",dry_run="",group="storage.k8s.io",resource="volumeattachments",scope="resource",subresource="",verb="PATCH",version="v1"} 1.234567e+06
apiserver_request_total_of_something_else{code="200"} 7
apiserver_request_duration_seconds_count{verb="PATCH"} 7
"#;

    #[test]
    fn requests_are_counted_by_what_was_asked() {
        let metrics = Metrics::parse(TEXT).unwrap();
        assert_eq!(metrics.requests("PATCH", "volumeattachments", "status"), 2004);
        assert_eq!(metrics.requests("PATCH", "volumeattachments", ""), 1_234_567);
        assert_eq!(metrics.requests("GET", "volumeattachments", ""), 0);
        assert_eq!(metrics.iter().count(), 3);
    }

    #[test]
    fn only_what_is_new_is_left_of_a_difference() {
        let earlier = Metrics::parse(TEXT).unwrap();
        let later = Metrics::parse(&TEXT.replace("} 3", "} 5")).unwrap();
        assert_eq!(
            later
                .since(&earlier)
                .requests("PATCH", "volumeattachments", "status"),
            2
        );
        assert_eq!(later.since(&earlier).iter().count(), 1);
        let restarted = Metrics::parse(&TEXT.replace("} 3", "} 2")).unwrap();
        assert_eq!(
            restarted
                .since(&earlier)
                .requests("PATCH", "volumeattachments", "status"),
            2
        );
    }

    #[test]
    fn series_is_found_by_its_labels_in_any_order() {
        let text = "\
            # TYPE attachdetach_controller_total_volumes gauge\n\
            attachdetach_controller_total_volumes{plugin_name=\"p\",state=\"desired\"} 3\n\
            attachdetach_controller_total_volumes{plugin_name=\"p\",state=\"actual\",zone=\"z\"} 7\n\
            attach_detach_controller_attachdetach_controller_forced_detaches{reason=\"timeout\"} 1e+01\n\
            up 1 1700000000000\n";
        let volumes = |labels| Series::new("attachdetach_controller_total_volumes", labels);
        let name = "attach_detach_controller_attachdetach_controller_forced_detaches";
        let forced = |reason| Series::new(name, [("reason", reason)]);
        for (series, value) in [
            (volumes([("state", "desired"), ("plugin_name", "p")]), 3),
            (volumes([("state", "actual"), ("plugin_name", "p")]), 0),
            (forced("timeout"), 10),
            (forced("out-of-service"), 0),
            (Series::new("up", []), 1),
            (
                Series::new("attachdetach_controller_forced_detaches", [("reason", "timeout")]),
                0,
            ),
        ] {
            assert_eq!(series.value(text).unwrap(), value, "{series:?}");
        }
    }

    #[test]
    fn unparsable_value_is_an_error() {
        for value in ["NaN", "1.5", "-1", "", "{"] {
            let text = format!("up {value}\n");
            assert!(Series::new("up", []).value(&text).is_err(), "{value:?}");
        }
    }

    #[test]
    fn counts_are_read_exactly_or_not_at_all() {
        let cases = [
            ("0", Some(0)),
            ("12", Some(12)),
            ("1e+06", Some(1_000_000)),
            ("1.5e+01", Some(15)),
        ];
        for (text, count) in cases
            .into_iter()
            .chain([("1.5", None), ("NaN", None), ("-1", None), ("", None)])
        {
            assert_eq!(parse_count(text), count, "{text}");
        }
    }

    #[test]
    fn a_sample_that_is_cut_off_is_an_error() {
        assert!(Metrics::parse("apiserver_request_total{verb=\"GET").is_err());
        let escaped = Metrics::parse(r#"apiserver_request_total{verb="a\"}\\b",code="1"} 1"#).unwrap();
        assert_eq!(escaped.requests("a\"}\\b", "", ""), 1);
    }
}
