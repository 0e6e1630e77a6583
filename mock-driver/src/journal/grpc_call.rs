//! One line of the log for each call, in the form that the csi-driver-host-path writes and that the
//! parser of Kubernetes' e2e suite reads: `gRPCCall:` and an object with `Method`, `Request`,
//! `Response`, `Error` and `FullError`.

use serde::Serialize;
use serde_json::Value;
use tonic::Code;

use super::call::Call;

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Line<'a> {
    method: &'a str,
    request: &'a Value,
    response: Option<&'a Value>,
    error: String,
    full_error: Option<FullError<'a>>,
}

#[derive(Serialize)]
struct FullError<'a> {
    code: i32,
    message: &'a str,
}

pub(super) fn log(call: &Call, request: &Value, response: Option<&Value>) {
    if let Some(line) = line(call, request, response) {
        tracing::info!("gRPCCall: {line}");
    }
}

fn line(call: &Call, request: &Value, response: Option<&Value>) -> Option<String> {
    let status = &call.end()?.status;
    let failed = status.code() != Code::Ok;
    let message = status.message();
    let line = Line {
        method: &call.method,
        request,
        response,
        error: if failed {
            format!("rpc error: code = {} desc = {message}", go_name(status.code()))
        } else {
            String::new()
        },
        full_error: failed.then_some(FullError {
            code: status.code().into(),
            message,
        }),
    };
    Some(serde_json::to_string(&line).expect("a line of JSON values must be representable as JSON"))
}

/// A code as Go's gRPC prints it.
fn go_name(code: Code) -> String {
    if code == Code::Ok {
        "OK".to_owned()
    } else if code == Code::Cancelled {
        "Canceled".to_owned()
    } else {
        format!("{code:?}")
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use csi_proto::v1::{GetPluginInfoResponse, NodeGetInfoRequest};
    use serde_json::json;
    use tonic::Status;

    use super::*;
    use crate::journal::clock::Clock;
    use crate::journal::{Journal, JournalConfig};

    fn logged(code: Code, message: &str, response: Option<&GetPluginInfoResponse>) -> Value {
        let readers = JournalConfig {
            kept: 1,
            ..JournalConfig::default()
        };
        let journal = Arc::new(Journal::open(None, readers, [7; 16], Clock::system()).unwrap());
        let request = journal.renderer.keep(&NodeGetInfoRequest {});
        let mut record = journal.begin("/csi.v1.Node/NodeGetInfo".into(), None, request);
        record.end(
            Status::new(code, message),
            response.map(|response| journal.renderer.keep(response)),
        );
        let call = journal.read(|memory| memory.after(0).next().unwrap().1.clone());
        let line = line(&call, &journal.request(&call), journal.response(&call).as_ref()).unwrap();
        assert!(!line.contains('\n'), "one call, one line: {line}");
        serde_json::from_str(&line).unwrap()
    }

    #[test]
    fn log_line_has_method_request_response_and_error() {
        let info = GetPluginInfoResponse {
            name: "a".into(),
            ..Default::default()
        };
        assert_eq!(
            logged(Code::Ok, "", Some(&info)),
            json!({"Method": "/csi.v1.Node/NodeGetInfo", "Request": {}, "Response": {"name": "a"},
                "Error": "", "FullError": null})
        );
        assert_eq!(
            logged(Code::ResourceExhausted, "two\nlines", None),
            json!({"Method": "/csi.v1.Node/NodeGetInfo", "Request": {}, "Response": null,
                "Error": "rpc error: code = ResourceExhausted desc = two\nlines",
                "FullError": {"code": 8, "message": "two\nlines"}})
        );
    }
}
