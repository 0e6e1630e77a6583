# The driver is killed while it attaches many volumes, and again while it detaches them.

  set latency 100ms

Twelve pods start at once. The driver is killed in the middle: running calls end without a response, and the attacher cannot
know whether the array has attached their volumes. It keeps running, reconnects, and retries the calls, which are idempotent
according to the CSI specification.

  driver: ControllerPublishVolume hangs for web-0
  pods web 12 on a, b
  wait web-0 published to a
  wait 5 ControllerPublishVolume succeeded
  kill driver
  driver: works again
  start driver
  wait pods web running

All pods are deleted, and the driver is killed again. No VolumeAttachment is deleted before the driver has confirmed the
detach.

  driver: ControllerUnpublishVolume hangs for web-0
  delete pods web
  wait web-0 not published to a
  wait 5 ControllerUnpublishVolume succeeded
  kill driver
  driver: works again
  start driver
  wait web-0 detached from a
  wait web-11 detached from b
