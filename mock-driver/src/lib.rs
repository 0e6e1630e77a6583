//! A CSI driver on an emulated array of block devices, for exercising the attach/detach path.
