//! `--kube-api-qps` and `--kube-api-burst`.

use super::number;
use crate::kube_api::Rate;

/// Client-side rate limit, by default none, as the API server has priority and fairness. The Go sidecar's default is 5 per second.
#[derive(Clone, Copy, Debug, PartialEq, clap::Args)]
pub(crate) struct KubeApi {
    /// Maximum requests per second to the API server (QPS). Not given, or negative: no limit.
    #[arg(long = "kube-api-qps", value_parser = rate, value_name = "N")]
    pub(crate) qps: Option<f64>,

    /// Burst of requests to the API server. Needs --kube-api-qps.
    #[arg(long = "kube-api-burst", value_parser = number::count, value_name = "N")]
    pub(crate) burst: Option<u32>,
}

/// client-go's defaults for a flag that is zero.
const DEFAULT_QPS: f64 = 5.0;
const DEFAULT_BURST: u32 = 10;

// === impl KubeApi ===

impl KubeApi {
    /// The limit, with client-go's meaning of zero, negative and infinite rates.
    pub(crate) fn rate(&self) -> Option<Rate> {
        let qps = self.qps.filter(|qps| *qps >= 0.0 && qps.is_finite())?;
        Some(Rate {
            qps: if qps > 0.0 { qps } else { DEFAULT_QPS },
            burst: self.burst.filter(|burst| *burst > 0).unwrap_or(DEFAULT_BURST),
        })
    }
}

fn rate(value: &str) -> Result<f64, String> {
    match value.parse::<f64>() {
        // A number too large for the type is an error; only a literal infinity means no limit.
        Ok(number)
            if number.is_finite()
                || number.is_infinite() && !value.contains(|c: char| c.is_ascii_digit()) =>
        {
            Ok(number)
        }
        Ok(_) | Err(_) => Err(format!("{value:?} is not a number of requests a second")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_a_rate_as_number_or_infinity() {
        assert_eq!(super::rate("+Inf"), Ok(f64::INFINITY));
        assert_eq!(super::rate("1e2"), Ok(100.0));
        for value in ["NaN", "", "many", "1e400"] {
            assert!(super::rate(value).is_err(), "{value}");
        }
    }

    #[test]
    fn zero_and_negative_rates_mean_the_same_as_in_client_go() {
        let rate = |qps, burst| KubeApi { qps, burst }.rate().map(|rate| (rate.qps, rate.burst));
        assert_eq!(rate(None, None), None);
        assert_eq!(rate(None, Some(7)), None);
        assert_eq!(rate(Some(-1.0), Some(7)), None);
        assert_eq!(rate(Some(f64::INFINITY), Some(7)), None);
        assert_eq!(rate(Some(0.0), Some(0)), Some((5.0, 10)));
        assert_eq!(rate(Some(50.0), None), Some((50.0, 10)));
        assert_eq!(rate(Some(0.5), Some(100)), Some((0.5, 100)));
    }
}
