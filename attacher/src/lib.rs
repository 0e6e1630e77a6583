//! A CSI external-attacher: VolumeAttachments in, ControllerPublishVolume and ControllerUnpublishVolume out.
