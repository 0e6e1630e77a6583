//! Fault files over HTTP: YAML bodies, and dry runs, which change nothing.

use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::TcpStream;

use super::wire::send;
use crate::server::Server;

/// The data of the events of `GET /changes`.
struct Changes(Lines<BufReader<TcpStream>>);

// === impl Changes ===

impl Changes {
    async fn open(server: &Server) -> Self {
        let mut stream = TcpStream::connect(server.admin_address()).await.unwrap();
        let request = format!(
            "GET /api/v1/changes HTTP/1.1\r\nHost: {}\r\n\r\n",
            server.admin_address()
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        Self(BufReader::new(stream).lines())
    }

    async fn next(&mut self) -> Value {
        loop {
            let line = self.0.next_line().await.unwrap().expect("the stream is endless");
            if let Some(data) = line.strip_prefix("data: ") {
                return serde_json::from_str(data).unwrap();
            }
        }
    }
}

async fn post(server: &Server, path: &str, yaml: &str) -> (u16, String) {
    let length = yaml.len();
    let request = format!(
        "POST /api/v1{path} HTTP/1.1\nHost: HOST\nContent-Type: application/yaml\nContent-Length: {length}\nConnection: close\n\n{yaml}"
    );
    send(server, &request).await
}

#[tokio::test]
async fn dry_run_of_a_fault_file_changes_nothing() {
    const FILE: &str = "{rules: [{id: slow, match: {method: Probe}, action: {delay: 1ms}}], \
                        backend-faults: [{id: gone, type: node-gone}]}";
    let (server, client) = Server::start_on_tcp(|_, _| ()).await;
    client.set_scenario("attach-uncertain", true).await.unwrap();
    let before = client.faults().await.unwrap();
    let taken = format!(
        "- {{id: {}, match: {{method: Probe}}, action: {{delay: 1ms}}}}",
        before.rules[0].id
    );
    let mut changes = Changes::open(&server).await;
    let first = changes.next().await;
    assert_eq!(first["counts"]["faults"], before.rules.len());

    // (case, file, status, code of the refusal)
    let table = [
        ("valid", FILE, 200, None),
        ("id of a scenario", &taken, 409, Some("ALREADY_EXISTS")),
        (
            "unknown type",
            "backend-faults: [{id: gone, type: none}]",
            400,
            Some("INVALID_ARGUMENT"),
        ),
        ("no YAML", "rules: [", 400, Some("INVALID_ARGUMENT")),
    ];
    for (case, file, expected, code) in table {
        let (status, response) = post(&server, "/scripts?dryRun=true", file).await;
        assert_eq!(status, expected, "{case}: {response}");
        let has_code = |code| response.contains(&format!("\"code\":\"{code}\""));
        assert!(code.is_none_or(has_code), "{case}: {response}");
        assert_eq!(client.faults().await.unwrap(), before, "{case}");
        assert_eq!(client.backend_faults().await.unwrap(), [], "{case}");
    }

    let (status, response) = post(&server, "/scripts?dryRun=false", FILE).await;
    assert_eq!(status, 200, "{response}");
    let after = client.faults().await.unwrap();
    assert_eq!(after.rules.len(), before.rules.len() + 1);
    assert!(after.rules.iter().any(|rule| rule.id == "slow"), "{after:?}");
    assert_eq!(client.backend_faults().await.unwrap()[0].id, "gone");
    let change = changes.next().await;
    let revision = |event: &Value| event["revision"].as_u64().unwrap();
    assert_eq!(
        (revision(&change), &change["counts"]["faults"]),
        (revision(&first) + 1, &Value::from(after.rules.len())),
        "the dry runs announced no change"
    );
}
