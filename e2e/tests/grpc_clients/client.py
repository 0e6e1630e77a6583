"""Calls a driver with gRPC's C core, without options: client.py csi|registration SOCKET.

Prints the driver's name for each call, as both services have it in a string of the reply.
"""

import sys

import grpc

# The method, and the number of the reply's field with the name.
METHODS = {
    "csi": ("/csi.v1.Identity/GetPluginInfo", 1),
    "registration": ("/pluginregistration.Registration/GetInfo", 2),
}


def text(message, wanted):
    """The string in a field of a message that has only short strings."""
    while message:
        number, length = message[0] >> 3, message[1]
        value, message = message[2 : 2 + length], message[2 + length :]
        if number == wanted:
            return value.decode()
    raise ValueError("the reply has no such field")


def main(service, socket):
    method, field = METHODS[service]
    with grpc.insecure_channel(f"unix:{socket}") as channel:
        call = channel.unary_unary(method)
        # More than one, as the later ones refer to the header fields of the first.
        for _ in range(3):
            print(text(call(b"", timeout=10), field))


main(*sys.argv[1:])
