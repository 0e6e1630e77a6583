//! What the pipeline asks of a request.

use csi_proto::Secrets;
use prost::Message;

use crate::driver::Driver;
use crate::driver::error::Error;
use crate::driver::locks::{Key, LockMode};
use crate::rpc::method::{Kind, Method};
use crate::rpc::validate::Invalid;

/// A request this driver can answer.
pub(crate) trait Rpc: Message + Secrets + Clone + 'static {
    const METHOD: Method;

    /// What it is about to do.
    const KIND: Kind = Self::METHOD.kind();

    type Reply: Message + Secrets + Clone + Default + 'static;

    /// The request in the array's terms.
    type Params: Send + 'static;

    /// The volume it names, if any.
    fn volume(&self) -> &str {
        ""
    }

    /// The node it names, if any.
    fn node(&self) -> &str {
        ""
    }

    /// The name of the volume it wants created, if any.
    fn name(&self) -> &str {
        ""
    }

    /// What it locks, unless it only reads: the volume, or the name of what it creates.
    fn keys(&self) -> Vec<(Key, LockMode)> {
        let key = match (Self::KIND, self.volume(), self.name()) {
            (Kind::Read, ..) | (_, "", "") => return Vec::new(),
            (_, "", name) => Key::Name(name.to_owned()),
            (Kind::OnNode, volume, _) => Key::OnNode(volume.to_owned()),
            (Kind::Change | Kind::Move, volume, _) => Key::Volume(volume.to_owned()),
        };
        vec![(key, LockMode::Exclusive)]
    }

    /// Checks the request's form.
    fn validate(&self) -> Result<Self::Params, Invalid>;

    /// Does what was asked.
    fn execute(
        params: Self::Params,
        driver: &Driver,
    ) -> impl Future<Output = Result<Self::Reply, Error>> + Send;
}
