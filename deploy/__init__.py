"""How layby is deployed: images and manifests, and the same on one machine (`topology`)."""
