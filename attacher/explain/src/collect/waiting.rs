//! What waits for something in the whole cluster.

use k8s_openapi::api::core::v1::{PersistentVolume, Pod};
use k8s_openapi::api::storage::v1::VolumeAttachment;

use super::{Collector, MAX_OBJECTS};
use crate::api::ReadError;
use crate::objects::{AttachmentExt, ObjectExt, PodExt};
use crate::snapshot::Lookup;

impl Collector<'_> {
    /// The objects of the cluster that wait for something, of each kind the oldest [`MAX_OBJECTS`].
    ///
    /// # Errors
    /// No kind can be listed.
    pub(super) async fn read_waiting(&mut self) -> Result<(), ReadError> {
        let is_waiting = |pod: &Pod| pod.is_waiting() && pod.claims().next().is_some();
        let (pods, all_pods) = self
            .reader
            .list("pods", &self.cluster_api(), "", is_waiting)
            .await;
        let api = self.cluster_api();
        let attachments = self
            .reader
            .list("volumeattachments", &api, "", VolumeAttachment::is_unfinished);
        let (attachments, all_attachments) = attachments.await;
        let is_deleting = |volume: &PersistentVolume| volume.deleted_at().is_some();
        let api = self.cluster_api();
        let volumes = self.reader.list("persistentvolumes", &api, "", is_deleting);
        let (volumes, all_volumes) = volumes.await;
        if !(all_pods || all_attachments || all_volumes) {
            return Err(ReadError::Failed(self.reader.first_gap()));
        }
        self.snapshot.pods = self.oldest("pods", pods);
        self.snapshot.attachments = self.oldest("volumeattachments", attachments);
        let volumes = self.oldest("persistentvolumes", volumes).into_iter();
        let volumes = volumes.map(|volume| (volume.name().to_owned(), Lookup::Found(volume)));
        self.snapshot.volumes.extend(volumes);
        Ok(())
    }

    fn oldest<T: ObjectExt>(&self, resources: &str, mut objects: Vec<T>) -> Vec<T> {
        objects.sort_by_key(ObjectExt::created_at);
        if objects.len() > MAX_OBJECTS {
            let all = objects.len();
            self.reader.note_gap(format!(
                "of {all} {resources} that wait for something only the oldest {MAX_OBJECTS} are explained"
            ));
            objects.truncate(MAX_OBJECTS);
        }
        objects
    }
}
