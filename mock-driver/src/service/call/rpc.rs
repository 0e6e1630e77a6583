use csi_proto::Secrets;
use prost::Message;

use crate::array::Array;
use crate::driver::Driver;
use crate::driver::error::Error;
use crate::driver::locks::{Key, LockMode};
use crate::rpc::method::{Kind, Method};
use crate::rpc::validate::Invalid;

/// A request of an RPC that the driver implements, as the tables of the services describe it.
pub(crate) trait RpcRequest: Message + Secrets + Clone + 'static {
    type Reply: Message + Secrets + Clone + Default + 'static;

    const METHOD: Method;

    const PATH: &'static str = Self::METHOD.path();

    const KIND: Kind = Self::METHOD.kind();

    /// The volume id of the request, or an empty text.
    fn volume(&self) -> &str {
        ""
    }

    /// The node id of the request, or an empty text.
    fn node(&self) -> &str {
        ""
    }

    /// The name of the object to create, or an empty text.
    fn name(&self) -> &str {
        ""
    }
}

/// The execution of a request by the driver.
pub(crate) trait Rpc: RpcRequest {
    type Params: Send + 'static;

    /// The keys that the call locks, unless it only reads: the volume, or the name of the object to create.
    fn keys(&self) -> Vec<(Key, LockMode)> {
        let key = match (Self::KIND, self.volume()) {
            (Kind::Read, _) => return Vec::new(),
            (_, "") if self.name().is_empty() => return Vec::new(),
            (_, "") => Key::Name(self.name().to_owned()),
            (Kind::OnNode, volume) => Key::OnNode(volume.to_owned()),
            (Kind::Change | Kind::Publish, volume) => Key::Volume(volume.to_owned()),
        };
        vec![(key, LockMode::Exclusive)]
    }

    fn validate(&self) -> Result<Self::Params, Invalid>;

    /// Keeps the ids or numbers of the reply for the operation, which happens later.
    fn promise(_: &Self::Params, _: &mut Array) {}

    fn execute(
        params: Self::Params,
        driver: &Driver,
    ) -> impl Future<Output = Result<Self::Reply, Error>> + Send;
}
