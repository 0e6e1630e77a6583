//! Requests for driver, volumes, nodes and attachments.

use http::Method;

use super::super::resource::{
    Attach, Attachment, Info, Node, NodeChange, NodeNew, Page, Volume, VolumeChange, VolumeNew,
};
use super::{Client, Error};

impl Client {
    /// Reads the driver information.
    pub async fn info(&self) -> Result<Info, Error> {
        self.get(&["info"], &[]).await
    }

    /// Lists volumes; the query has the parameters of `GET /api/v1/volumes`.
    pub async fn volumes(&self, query: &[(&str, String)]) -> Result<Page<Volume>, Error> {
        self.get(&["volumes"], query).await
    }

    /// Reads a volume.
    pub async fn volume(&self, volume: &str) -> Result<Volume, Error> {
        self.get(&["volumes", volume], &[]).await
    }

    /// Creates a volume.
    pub async fn create_volume(&self, new: &VolumeNew) -> Result<Volume, Error> {
        self.send(Method::POST, &["volumes"], Some(new)).await
    }

    /// Deletes a volume.
    pub async fn delete_volume(&self, volume: &str) -> Result<(), Error> {
        self.delete(&["volumes", volume]).await
    }

    /// Changes a volume.
    pub async fn change_volume(&self, volume: &str, change: &VolumeChange) -> Result<Volume, Error> {
        self.send(Method::PATCH, &["volumes", volume], Some(change)).await
    }

    /// Lists nodes; the query has the parameters of `GET /api/v1/nodes`.
    pub async fn nodes(&self, query: &[(&str, String)]) -> Result<Page<Node>, Error> {
        self.get(&["nodes"], query).await
    }

    /// Reads a node.
    pub async fn node(&self, node: &str) -> Result<Node, Error> {
        self.get(&["nodes", node], &[]).await
    }

    /// Registers a node.
    pub async fn register_node(&self, new: &NodeNew) -> Result<Node, Error> {
        self.send(Method::POST, &["nodes"], Some(new)).await
    }

    /// Changes a node.
    pub async fn change_node(&self, node: &str, change: &NodeChange) -> Result<Node, Error> {
        self.send(Method::PATCH, &["nodes", node], Some(change)).await
    }

    /// Deregisters a node. Its volumes stay attached.
    pub async fn remove_node(&self, node: &str) -> Result<(), Error> {
        self.delete(&["nodes", node]).await
    }

    /// Lists attachments; the query has the parameters of `GET /api/v1/attachments`.
    pub async fn attachments(&self, query: &[(&str, String)]) -> Result<Page<Attachment>, Error> {
        self.get(&["attachments"], query).await
    }

    /// Attaches a volume out of band.
    pub async fn attach(&self, volume: &str, node: &str, attach: &Attach) -> Result<Attachment, Error> {
        self.send(Method::PUT, &["attachments", volume, node], Some(attach))
            .await
    }

    /// Detaches a volume out of band: the attacher does not see it.
    pub async fn detach(&self, volume: &str, node: &str) -> Result<(), Error> {
        self.delete(&["attachments", volume, node]).await
    }
}
