//! Role: the layer-7 proxy. Empty until layer 7 exists; until then connections to a service that
//! names a waypoint are refused.
