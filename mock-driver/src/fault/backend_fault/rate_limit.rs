use super::*;
use crate::fault::call_info::is_for_array;

backend_fault! {
    "rate-limit":
    "the array refuses calls beyond the rate; Node and Identity calls pass and do not count",
    RateLimit { method: Methods, per_second: f64, burst: f64, code: ErrorCode }
}

impl RateLimit {
    pub(super) fn add_to(self, rule: &mut Rule) -> Result<(), FieldError> {
        let per_second = required("per-second", self.per_second, "per-second: 5")?;
        let burst = self.burst.unwrap_or(1.0);
        for (field, number) in [("per-second", per_second), ("burst", burst)] {
            if !(number.is_finite() && number > 0.0) {
                return Err(FieldError::new(field, "must be a number above 0"));
            }
        }
        let known = self.method.as_ref().map(Methods::known).unwrap_or_default();
        if !known.is_empty() && !known.iter().any(|method| is_for_array(method.path())) {
            let reason = "rate-limit concerns calls to the array: use a Controller method";
            return Err(FieldError::new("method", reason));
        }
        rule.matches.method = self.method;
        let burst = burst.max(1.0);
        let code = ErrorCode::or(self.code, Code::ResourceExhausted);
        rule.refuse(code, move |asked| {
            let is_exceeded =
                is_for_array(asked.call.path()) && !asked.state.take_token(per_second, burst, asked.now);
            is_exceeded.then(|| format!("rate limit of {per_second} calls per second exceeded: retry later"))
        });
        Ok(())
    }
}
