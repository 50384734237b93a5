"""Envoy's side: which ways there are to put Envoy before Fairlane, and the complete configuration of each.

There is one source, `envoy/envoy.yaml`: the profile `standard` with the reason of every setting, which users read and
copy. Every other configuration is that file with a few named steps applied, so that a setting is explained, and
mended, in one place.

    description   what can be chosen, and what cannot be chosen together
    base_file     the file and the Lua filters beside it, in a checkout or a wheel
    parts         the places of a configuration at which the steps work
    steps         one function for each choice
    build         description + addresses -> configuration, and what differs
    derive        description out of fairlane.yaml
    text          YAML and JSON that Envoy reads as they are meant
    shipped       the files in envoy/ that are made here
"""
