# A volume follows its pods through Kubernetes, the attacher and the driver.

A pod with a volume: the volume is attached to the pod's node before the pod runs.

  pod web on a with data
  wait web running

The pod moves: the volume is detached from node a before it is attached to node b.

  delete pod web
  pod web-2 on b with data
  wait web-2 running
  expect data detached from a before attached to b

The driver fails, then recovers: its error appears in the VolumeAttachment and in an event of the pod.

  driver: ControllerPublishVolume fails with RESOURCE_EXHAUSTED "all slots of the node are taken"
  pod db on a with logs
  wait db event FailedAttachVolume "all slots of the node are taken"
  expect db not running
  driver: works again
  wait db running

The attacher is killed during a driver call: the array has attached the volume, but the response is lost. The restarted
attacher completes the attach.

  driver: ControllerPublishVolume hangs
  pod api on b with cache
  wait cache published to b
  kill attacher
  driver: works again
  start attacher
  wait api running
