# The target `portcullis`. Include this file from your CMakeLists.txt, and set PORTCULLIS_LIBRARY to
# the library that you have built.
add_library(portcullis STATIC IMPORTED)
set_target_properties(portcullis PROPERTIES
    IMPORTED_LOCATION "${PORTCULLIS_LIBRARY}"
    INTERFACE_INCLUDE_DIRECTORIES "${CMAKE_CURRENT_LIST_DIR}/include")
