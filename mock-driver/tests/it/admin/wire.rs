//! HTTP requests of browsers and other clients.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::program::{Program, output};
use crate::server::Server;

/// Sends a raw request. `HOST` is replaced by the driver's address.
pub(super) async fn send(server: &Server, request: &str) -> (u16, String) {
    send_to(&server.admin_address().to_string(), request).await
}

async fn send_to(address: &str, request: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = request.replace("HOST", address).replace('\n', "\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).await.unwrap();
    let status = response.split(' ').nth(1).unwrap().parse().unwrap();
    (status, response)
}

#[tokio::test]
async fn cross_site_requests_are_rejected() {
    let (server, client) = Server::start_on_tcp(|_, settings| settings.initial_volumes = 1).await;
    // (case, request, status)
    let table = [
        (
            "ours",
            "GET /api/v1/info HTTP/1.1\nHost: HOST\nConnection: close\n\n",
            200,
        ),
        (
            "rebound name",
            "GET /api/v1/info HTTP/1.1\nHost: evil.example:80\nConnection: close\n\n",
            421,
        ),
        ("no host", "GET /api/v1/info HTTP/1.0\n\n", 421),
        (
            "a form of another site",
            "POST /api/v1/volumes HTTP/1.1\nHost: HOST\nContent-Type: text/plain\nContent-Length: 12\nConnection: close\n\n{\"name\":\"a\"}",
            415,
        ),
        (
            "a script of another site",
            "POST /api/v1/volumes HTTP/1.1\nHost: HOST\nOrigin: http://evil.example\nContent-Type: application/json\nContent-Length: 12\nConnection: close\n\n{\"name\":\"a\"}",
            403,
        ),
        (
            "a preflight request",
            "OPTIONS /api/v1/volumes HTTP/1.1\nHost: HOST\nOrigin: http://evil.example\nAccess-Control-Request-Method: POST\nConnection: close\n\n",
            405,
        ),
        (
            "deleting from another site",
            "DELETE /api/v1/volumes/vol-0 HTTP/1.1\nHost: HOST\nSec-Fetch-Site: cross-site\nConnection: close\n\n",
            403,
        ),
        (
            "a program",
            "POST /api/v1/volumes HTTP/1.1\nHost: HOST\nContent-Type: application/json\nContent-Length: 12\nConnection: close\n\n{\"name\":\"a\"}",
            201,
        ),
    ];
    for (case, request, expected) in table {
        let (status, response) = send(&server, request).await;
        assert_eq!(status, expected, "{case}: {response}");
        let lower = response.to_lowercase();
        assert!(!lower.contains("access-control-allow"), "{case}: {response}");
        assert!(
            lower.contains("content-security-policy: default-src 'none'"),
            "{case}: {response}"
        );
        assert!(
            lower.contains("x-content-type-options: nosniff"),
            "{case}: {response}"
        );
    }
    assert_eq!(
        client.volumes(&Default::default()).await.unwrap().matched,
        2,
        "vol-0 and the program's"
    );
}

#[tokio::test]
async fn allowed_host_names_are_accepted() {
    let request = "GET /api/v1/info HTTP/1.1\nHost: name.example\nConnection: close\n\n";
    for (flags, expected) in [(vec![], 421), (vec!["--admin-allowed-host=name.example"], 200)] {
        let directory = tempfile::tempdir().unwrap();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        drop(listener);
        let media = format!("--media-dir={}", directory.path().join("media").display());
        let admin = format!("--admin-endpoint={address}");
        let flags = [&*media, &*admin].into_iter().chain(flags);
        let _driver = Program::start(&directory.path().join("csi.sock"), flags).await;
        let (status, response) = send_to(&address, request).await;
        assert_eq!(status, expected, "{response}");
    }
}

#[tokio::test]
async fn errors_name_the_field() {
    let (server, _client) = Server::start_on_tcp(|_, _| ()).await;
    // (body, words)
    let table = [
        ("{\"nam\":\"a\"}", "unknown field `nam`"),
        ("{\"name\":5}", "name: invalid type"),
        (
            "{\"name\":\"a\",\"capacityBytes\":-1}",
            "capacityBytes: invalid value",
        ),
        ("{\"name\":\"a\"} x", "the body does not end"),
        ("[", "not as expected"),
        ("{}", "missing field `name`"),
        ("{\"name\":\"\"}", "name"),
    ];
    for (body, words) in table {
        let length = body.len();
        let request = format!(
            "POST /api/v1/volumes HTTP/1.1\nHost: HOST\nContent-Type: application/json\nContent-Length: {length}\nConnection: close\n\n{body}"
        );
        let (status, response) = send(&server, &request).await;
        assert_eq!(status, 400, "{body}: {response}");
        assert!(response.contains(words), "{body}: {response}");
        assert!(
            response.contains("\"code\":\"INVALID_ARGUMENT\""),
            "{body}: {response}"
        );
    }
    let (status, response) = send(
        &server,
        "GET /api/v1/volumes?limt=1 HTTP/1.1\nHost: HOST\nConnection: close\n\n",
    )
    .await;
    assert_eq!(status, 400);
    assert!(response.contains("limt"), "{response}");
}

#[tokio::test]
async fn wrong_methods_and_paths_return_problem_details() {
    let (server, _client) = Server::start_on_tcp(|_, _| ()).await;
    // (the first line, status, code)
    let table = [
        ("PUT /api/v1/volumes", 405, "UNIMPLEMENTED"),
        ("POST /metrics", 405, "UNIMPLEMENTED"),
        ("GET /api/v1/volumes/%ff", 400, "INVALID_ARGUMENT"),
        ("GET /api/v1/nothing", 404, "NOT_FOUND"),
    ];
    for (line, expected, code) in table {
        let request = format!(
            "{line} HTTP/1.1\nHost: HOST\nContent-Type: application/json\nContent-Length: 0\nConnection: close\n\n"
        );
        let (status, response) = send(&server, &request).await;
        assert_eq!(status, expected, "{line}: {response}");
        assert!(
            response.contains(&format!("{{\"code\":\"{code}\"")),
            "{line}: {response}"
        );
        assert_eq!(response.contains("allow:"), expected == 405, "{line}: {response}");
    }
}

#[test]
fn remote_addresses_need_admin_allow_remote() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("csi.sock");
    for endpoint in ["0.0.0.0:0", "[::]:0"] {
        let output = output(&socket, &[&format!("--admin-endpoint={endpoint}")]);
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{text}");
        for word in ["--admin-endpoint", "--admin-allow-remote", "127.0.0.1"] {
            assert!(text.contains(word), "{word}: {text}");
        }
    }
    let output = output(&socket, &["--admin-endpoint=example.org:80"]);
    assert_eq!(output.status.code(), Some(2));
}
