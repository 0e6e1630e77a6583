# The leading attacher is killed, and a standby takes over when the lease has expired. The next leader is stopped by SIGTERM and releases the lease, so that the standby takes over at once.

Two attachers run. The one that holds the Lease is the leader; the other is on standby.

  start attacher one
  wait attacher one leads
  start attacher two
  pod db on a with data
  wait db running

The leader is killed. It does not release the Lease, and attacher two must not lead while attacher one may still run: it waits
until the Lease was not renewed for the whole lease duration. New volumes wait, too.

  kill attacher one
  pod web on b with logs
  wait attacher two leads
  wait web running

The leader receives SIGTERM, as in a rolling update. It finishes its calls and releases the Lease, so the standby becomes
leader at once.

  start attacher three
  stop attacher two
  wait attacher three leads
  pod api on a with cache
  wait api running
