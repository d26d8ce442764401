"""CDI as Fairlead uses it: the library's errors in Fairlead's classes, and stamps of the specs that Fairlead writes."""
