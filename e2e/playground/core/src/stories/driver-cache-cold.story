# Incident: the driver is updated while a pod moves, and does not know its nodes yet (kubernetes#95804).

Pod db runs on node a with volume data.

  pod db on a with data
  wait db running

The driver's pods are replaced. On node a the driver is not registered for a moment, so the CSINode has no entry for it, and
the driver's new controller has not learned the nodes yet: it responds NOT_FOUND to the detach. Meanwhile the pod moves.

  driver: ControllerUnpublishVolume pretends NOT_FOUND
  unregister driver on a
  delete pod db
  pod db-2 on b with data

NOT_FOUND of a driver that may not know its nodes proves nothing. The attacher keeps its finalizer and reports the error, so
that data is not attached to node b while node a has it. An attacher that took NOT_FOUND for a success would lose data here.

  wait data detach error on a "code = NotFound"
  expect data published to a
  expect data not published to b
  expect db-2 not running

The driver is registered on node a again and knows its nodes. The detach is retried, and the volume moves.

  register driver on a
  driver: works again
  wait data detached from a
  wait db-2 running
