//! Clients that send the path of a socket as `:authority`, like kubelet, gRPC's C core and grpc-java. No Rust client
//! supports that, so the frames are built here. `e2e/tests/grpc_clients` tests the real clients.

use std::path::Path;

use csi_mock_driver::driver::registration;
use csi_proto::registration::PluginInfo;
use csi_proto::v1::GetPluginInfoResponse;
use prost::Message;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::time;

use crate::server::{DEADLINE, Server};

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const GOAWAY: u8 = 7;

/// `h2` returns this instead of RFC 9113's COMPRESSION_ERROR.
const PROTOCOL_ERROR: u32 = 1;

/// As kubelet escapes it.
const KUBELET: &str = "%2Fvar%2Flib%2Fkubelet%2Fplugins_registry%2Fmock.csi.local-reg.sock";
/// As grpc-java sends it.
const BARE: &str = "/run/csi/csi.sock";

/// A connection whose first call sends the authority; later calls refer to it by its HPACK index.
struct Connection {
    socket: UnixStream,
    next_stream: u32,
}

/// The result of a call: the message, or the frame that ended it and its error code.
type CallResult = Result<Vec<u8>, (u8, u32)>;

// === impl Connection ===

impl Connection {
    async fn to(path: &Path) -> Self {
        let mut socket = UnixStream::connect(path).await.unwrap();
        socket
            .write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
            .await
            .unwrap();
        let mut connection = Self {
            socket,
            next_stream: 1,
        };
        connection.send(SETTINGS, 0, 0, &[]).await;
        connection
    }

    async fn send(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        let head = [&length[1..], &[kind, flags], &stream.to_be_bytes()].concat();
        self.socket.write_all(&[&head, payload].concat()).await.unwrap();
    }

    /// Makes a call without arguments.
    async fn call(&mut self, authority: &str, path: &str) -> CallResult {
        let text = |text: &str| [&[u8::try_from(text.len()).unwrap()], text.as_bytes()].concat();
        let authority = match self.next_stream {
            // Added to the dynamic table.
            1 => [vec![0x41], text(authority)].concat(),
            _ => vec![0xbe],
        };
        let block = [
            // :method: POST, :scheme: http
            vec![0x83, 0x86],
            authority,
            [vec![0x04], text(path)].concat(),
            [vec![0x0f, 0x10], text("application/grpc")].concat(),
            [vec![0x00], text("te"), text("trailers")].concat(),
        ];
        self.exchange(&block.concat()).await
    }

    async fn exchange(&mut self, block: &[u8]) -> CallResult {
        let stream = self.next_stream;
        self.next_stream += 2;
        self.send(HEADERS, 0x4, stream, block).await;
        self.send(DATA, 0x1, stream, &[0; 5]).await;
        let response = time::timeout(DEADLINE, self.response(stream)).await;
        response.expect("a response within the deadline")
    }

    async fn response(&mut self, stream: u32) -> CallResult {
        let mut message = Vec::new();
        loop {
            let mut head = [0; 9];
            self.socket.read_exact(&mut head).await.unwrap();
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
            let mut payload = vec![0; usize::try_from(length).unwrap()];
            self.socket.read_exact(&mut payload).await.unwrap();
            let error = |at: usize| u32::from_be_bytes(payload[at..at + 4].try_into().unwrap());
            let of = u32::from_be_bytes(head[5..9].try_into().unwrap());
            match head[3] {
                GOAWAY => return Err((GOAWAY, error(4))),
                RST_STREAM if of == stream => return Err((RST_STREAM, error(0))),
                DATA if of == stream => message.extend_from_slice(&payload),
                HEADERS if of == stream && head[4] & 0x1 != 0 => {
                    return Ok(message.get(5..).unwrap_or_default().to_vec());
                }
                _ => {}
            }
        }
    }
}

async fn assert_serves<M: Message + Default>(socket: &Path, path: &str, name: impl Fn(M) -> String) {
    for authority in [KUBELET, BARE, "", "localhost"] {
        let mut connection = Connection::to(socket).await;
        for nth in 1..=3 {
            let reply = connection.call(authority, path).await;
            let reply = reply.unwrap_or_else(|error| panic!("{authority:?}, call {nth}: {error:?}"));
            assert_eq!(
                name(M::decode(&reply[..]).unwrap()),
                "mock.csi.local",
                "{authority:?}"
            );
        }
    }
}

#[tokio::test]
async fn every_socket_serves_clients_that_send_a_path_as_authority() {
    let server = Server::start_with(|directory, settings| {
        settings.registration = Some(registration::Settings {
            directory: directory.to_owned(),
            endpoint: "/csi/csi.sock".into(),
        });
    })
    .await;
    let plugin = |reply: GetPluginInfoResponse| reply.name;
    let info = "/csi.v1.Identity/GetPluginInfo";
    assert_serves(&server.path("csi.sock"), info, plugin).await;

    let socket = server.path("mock.csi.local-reg.sock");
    let bound = async {
        while !socket.exists() {
            time::sleep(std::time::Duration::from_millis(5)).await;
        }
    };
    time::timeout(DEADLINE, bound).await.expect("must be bound");
    let registered = |reply: PluginInfo| reply.name;
    assert_serves(&socket, "/pluginregistration.Registration/GetInfo", registered).await;

    let behind = server.path("csi.sock");
    let proxy = Server::start_with(|_, settings| settings.proxy_to = Some(behind)).await;
    assert_serves(&proxy.path("csi.sock"), info, plugin).await;
}

#[tokio::test]
async fn malformed_header_block_closes_only_its_connection() {
    let server = Server::start().await;
    let socket = server.path("csi.sock");
    let mut other = Connection::to(&socket).await;
    let info = "/csi.v1.Identity/GetPluginInfo";
    assert!(other.call(KUBELET, info).await.is_ok());
    // An index beyond the table, and a truncated string.
    for block in [&[0xff, 0x7f][..], &[0x83, 0x04, 9, b'/']] {
        let mut broken = Connection::to(&socket).await;
        assert_eq!(
            broken.exchange(block).await,
            Err((GOAWAY, PROTOCOL_ERROR)),
            "{block:?}"
        );
    }
    assert!(other.call(KUBELET, info).await.is_ok());
}
